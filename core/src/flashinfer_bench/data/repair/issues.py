"""What can be wrong with a dataset, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Callable


class Kind(str, Enum):
    """Every sort of damage."""

    UNREADABLE = "unreadable"
    """A file or folder that the system does not let us read."""

    INVALID_FILE = "invalid_file"
    """A definition or solution that is none."""

    DUPLICATE_NAME = "duplicate_name"
    """A second definition, or solution, of one name."""

    TORN_LINE = "torn_line"
    """A last line whose writer died in the middle of it."""

    INVALID_LINE = "invalid_line"
    """A line that is not a workload or trace."""

    DUPLICATE_LINE = "duplicate_line"
    """The very same line as one before it."""

    ORPHAN_TRACE = "orphan_trace"
    """A workload or trace of a definition that is not in the dataset."""

    ORPHAN_SOLUTION = "orphan_solution"
    """A solution of a definition that is not in the dataset."""

    ORPHAN_BLOB = "orphan_blob"
    """A tensor file that no workload names."""

    UNKNOWN_SOLUTION = "unknown_solution"
    """A solution that traces name and the dataset has not."""

    WRONG_SOLUTION = "wrong_solution"
    """A solution that a trace names and that is of another definition."""

    MISSING_BLOB = "missing_blob"
    """A tensor file that a workload names and that is not there."""

    DAMAGED_BLOB = "damaged_blob"
    """A tensor file that is none."""

    UNSAFE_BLOB = "unsafe_blob"
    """A path of a tensor file that leads out of the dataset."""

    STALE_LOCK = "stale_lock"
    """A soft lock whose owner is gone."""

    TORN_FILE = "torn_file"
    """Where an append has put the unfinished line that it found."""

    LEFTOVER = "leftover"
    """A temporary file of a process that died."""


class Remedy(str, Enum):
    """How an issue can be mended."""

    SAFE = "safe"
    """Moving it into the backup changes no answer of the dataset."""

    ORPHANS = "orphans"
    """Moving it is a decision: what it belongs to may yet come back."""

    BY_HAND = "by_hand"
    """Only a human knows what it should be."""


REMEDIES = {
    Kind.TORN_LINE: Remedy.SAFE,
    Kind.INVALID_LINE: Remedy.SAFE,
    Kind.DUPLICATE_LINE: Remedy.SAFE,
    Kind.STALE_LOCK: Remedy.SAFE,
    Kind.TORN_FILE: Remedy.SAFE,
    Kind.LEFTOVER: Remedy.SAFE,
    Kind.ORPHAN_TRACE: Remedy.ORPHANS,
    Kind.ORPHAN_SOLUTION: Remedy.ORPHANS,
    Kind.ORPHAN_BLOB: Remedy.ORPHANS,
}
"""What can be mended by moving it; for everything else it takes a human."""

# What many sound datasets have: traces outlive solutions, and a tracer writes blobs in advance.
NOTES = frozenset({Kind.UNKNOWN_SOLUTION, Kind.ORPHAN_BLOB})


@dataclass(frozen=True)
class Issue:
    """One thing that is damaged.

    Parameters
    ----------
    kind : Kind
        What sort of damage it is.
    path : Path
        The file, relative to the dataset.
    message : str
        What is wrong.
    remedy : Remedy
        How it can be mended.
    line : int, optional
        Line in the file, from 1.
    hint : str, optional
        What to do.
    """

    kind: Kind
    path: Path
    message: str
    remedy: Remedy
    line: Optional[int] = None
    hint: Optional[str] = None

    @property
    def is_note(self) -> bool:
        """Whether a sound dataset may have it."""
        return self.kind in NOTES

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return str(self.path) if self.line is None else f"{self.path}:{self.line}"


def issue(
    kind: Kind,
    path: Path,
    message: str,
    *,
    line: Optional[int] = None,
    hint: Optional[str] = None,
    by_hand: bool = False,
) -> Issue:
    """Make an issue with the remedy of its kind, or with none but a human."""
    remedy = Remedy.BY_HAND if by_hand else REMEDIES.get(kind, Remedy.BY_HAND)
    return Issue(kind, path, message, remedy, line, hint)


def not_listed(root: Path, issues: list[Issue]) -> Callable[[OSError], None]:
    """Return what adds an issue for each folder of a dataset that cannot be listed."""

    def tell(error: OSError) -> None:
        at = Path(error.filename).relative_to(root)
        issues.append(issue(Kind.UNREADABLE, at, f"cannot be listed: {error.strerror}"))

    return tell

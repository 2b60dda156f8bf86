"""Examining a dataset, and repairing it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.data.repair.backup import Backup
from flashinfer_bench.data.repair.blobs import NamedBlobs
from flashinfer_bench.data.repair.issues import Issue, Kind, Remedy, issue, not_listed
from flashinfer_bench.data.repair.leftovers import FOLDERS, find_leftovers
from flashinfer_bench.data.repair.lines import LineReader, digest
from flashinfer_bench.data.repair.mend import LineMender, move_files
from flashinfer_bench.data.repair.names import Names
from flashinfer_bench.data.storage import locked
from flashinfer_bench.errors import DatasetNotFoundError, SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.data.repair.lines import Line

_Place = tuple[Path, Optional[int]]
_UNREAD = frozenset({Kind.UNREADABLE, Kind.TORN_LINE, Kind.INVALID_LINE})


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    issues : tuple of Issue
        By place.
    counts : dict of str to int
        How much of what was looked at.
    definitions : frozenset of str
        Names of the definitions.
    first : dict of bytes to (Path, int or None)
        File and line in which each distinct line stands first, by the line's digest.
    """

    root: Path
    issues: tuple[Issue, ...]
    counts: dict[str, int]
    definitions: frozenset[str] = field(default=frozenset(), repr=False)
    first: dict[bytes, _Place] = field(default_factory=dict, repr=False)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(one.is_note for one in self.issues)


@dataclass(frozen=True)
class Repair:
    """What a repair has done.

    Parameters
    ----------
    taken : tuple of Issue
        What was moved into the backup.
    backup : Path, optional
        Where to; None if nothing was to be moved.
    left : Diagnosis
        What is still wrong.
    """

    taken: tuple[Issue, ...]
    backup: Optional[Path]
    left: Diagnosis


def examine(root: Path) -> Diagnosis:
    """Look for damage; nothing is changed, and no lock is taken.

    Parameters
    ----------
    root : Path
        The dataset.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If none of the folders of a dataset is in it: it is another folder than was meant.
    """
    _require_dataset(root)
    with paused_gc():
        return _Examination(root).run()


def repair(root: Path, *, orphans: bool = False) -> Repair:
    """Move what can safely be taken out of a dataset into a backup folder in it.

    Files are rewritten while their lock is held, so that other processes may append meanwhile. To
    do it twice does nothing the second time.

    Parameters
    ----------
    root : Path
        The dataset.
    orphans : bool
        Also move what belongs to definitions and workloads that are not in the dataset.

    Raises
    ------
    DatasetNotFoundError, SelectionError
        As of `examine`.
    StorageError
        If something cannot be written; what was not moved yet stays where it was.
    """
    _require_dataset(root)  # before a lock is made in it
    remedies = {Remedy.SAFE, Remedy.ORPHANS} if orphans else {Remedy.SAFE}
    with locked(root / "doctor"):  # two at a time might take both of two equal lines
        found = examine(root)
        wanted = [one for one in found.issues if one.remedy in remedies]
        backup = Backup(root)
        kinds = {one.kind for one in wanted}
        mender = LineMender(root, backup, found.first, found.definitions, kinds)
        taken = mender.mend([one for one in wanted if one.line is not None])
        taken += move_files([one for one in wanted if one.line is None], root, backup)
        return Repair(tuple(taken), backup.folder, examine(root) if taken else found)


def _require_dataset(root: Path) -> None:
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise DatasetNotFoundError(f"no dataset: {root} {what}", hint="name a dataset folder")
    if not any(os.path.lexists(root / folder) for folder in FOLDERS):
        hint = f"a dataset has the folders {', '.join(FOLDERS)}"
        raise SelectionError(f"there is nothing in the dataset {root}", hint=hint)


class _Examination:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._names = Names(root)
        self._blobs = NamedBlobs(root)
        self._first: dict[bytes, _Place] = {}
        self._looked_at: dict[tuple[int, int], Path] = {}
        self._issues = self._names.issues
        self._counts = Counter(
            definitions=len(self._names.definitions),
            solutions=len(self._names.solutions),
            workloads=0,
            traces=0,
        )

    def run(self) -> Diagnosis:
        reader = LineReader(self._root)
        for path in self._files(layout.WORKLOADS) + self._files(layout.TRACES):
            self._look_at(path, reader)
        self._issues += self._names.unknown_solutions()
        all_known = not any(one.kind in _UNREAD for one in self._issues)
        self._issues += self._blobs.issues(all_known=all_known)
        self._issues += find_leftovers(self._root)
        ordered = sorted(self._issues, key=lambda one: (one.path, one.line or 0, one.kind.value))
        definitions = frozenset(self._names.definitions)
        return Diagnosis(self._root, tuple(ordered), dict(self._counts), definitions, self._first)

    def _files(self, folder: str) -> list[Path]:
        on_error = not_listed(self._root, self._issues)
        return layout.files(self._root / folder, ".jsonl", ".json", on_error=on_error)

    def _look_at(self, path: Path, reader: LineReader) -> None:
        relative = path.relative_to(self._root)
        try:
            info = path.stat()
            first = self._looked_at.setdefault((info.st_dev, info.st_ino), relative)
            if first != relative:  # its lines would pass for copies, and there is only one
                self._issues.append(_linked(relative, first))
                return
            for line in reader.read(path):
                found = self._judge(line, relative)
                if found is not None:
                    self._issues.append(found)
        except FileNotFoundError:  # deleted since it was listed
            return
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            self._issues.append(issue(Kind.UNREADABLE, relative, message))

    def _judge(self, line: Line, path: Path) -> Optional[Issue]:
        trace = line.trace
        if trace is None:
            return line.problem
        key = digest(line.raw)
        if key in self._first:
            return _duplicate(path, line.number, self._first[key])
        self._first[key] = (path, line.number)
        self._counts["workloads" if trace.is_workload_trace() else "traces"] += 1
        self._blobs.add(trace, path, line.number)
        return self._names.judge(trace, path, line.number)


def _duplicate(path: Path, line: Optional[int], first: _Place) -> Issue:
    at = first[0] if first[1] is None else f"{first[0]}:{first[1]}"
    return issue(
        Kind.DUPLICATE_LINE, path, f"the same line stands at {at}", line=line, by_hand=line is None
    )


def _linked(path: Path, first: Path) -> Issue:
    message = f"this is the file {first} by another way, so that its lines are read twice"
    return issue(
        Kind.DUPLICATE_LINE, path, message, hint="remove one of the two links", by_hand=True
    )

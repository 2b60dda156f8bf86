"""Taking lines and files out of a dataset, into the backup."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.repair.issues import Issue, Kind, issue
from flashinfer_bench.data.repair.leftovers import is_stale
from flashinfer_bench.data.repair.lines import LineReader, digest
from flashinfer_bench.data.storage import locked, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.repair.backup import Backup
    from flashinfer_bench.data.repair.lines import Line


class LineMender:
    """Rewrites files of lines without those that are damaged.

    Parameters
    ----------
    root : Path
        The dataset.
    backup : Backup
        Takes the lines.
    first : mapping of bytes to (Path, int or None)
        File and line in which each distinct line stands first, by digest.
    definitions : set of str
        The definitions that there are; others make orphans.
    kinds : set of Kind
        What is to be taken.
    """

    def __init__(
        self,
        root: Path,
        backup: Backup,
        first: Mapping[bytes, tuple[Path, Optional[int]]],
        definitions: frozenset[str],
        kinds: set[Kind],
    ) -> None:
        self._root = root
        self._backup = backup
        self._first = first
        self._definitions = definitions
        self._kinds = kinds

    def mend(self, issues: Sequence[Issue]) -> list[Issue]:
        """Take out what `issues` tell of, file by file; return what was taken."""
        taken: list[Issue] = []
        for path, _ in groupby(issues, key=lambda one: one.path):
            if not (self._root / path).is_symlink():  # it would become a file of its own
                taken += self._mend_file(path)
        return taken

    def _mend_file(self, relative: Path) -> list[Issue]:
        path = self._root / relative
        with locked(path):
            # Read again: other processes may have appended, or moved an unfinished line aside.
            lines = list(LineReader(self._root).read(path))
            seen: set[bytes] = set()
            found = [self._judge(line, relative, seen) for line in lines]
            taken = [one for one in found if one is not None]
            if not taken or any(line.number is None for line in lines):
                return []
            out = [line.raw for line, one in zip(lines, found, strict=True) if one is not None]
            kept = [line.raw for line, one in zip(lines, found, strict=True) if one is None]
            self._backup.add_lines(taken, out)
            replace_file(path, b"".join(kept))
        return taken

    def _judge(self, line: Line, path: Path, seen: set[bytes]) -> Optional[Issue]:
        found = line.problem
        if line.trace is not None:
            found = self._judge_trace(line, line.trace.definition, path, seen)
        return found if found is not None and found.kind in self._kinds else None

    def _judge_trace(
        self, line: Line, definition: str, path: Path, seen: set[bytes]
    ) -> Optional[Issue]:
        key = digest(line.raw)
        if key in seen or self._first.get(key, (path, 0))[0] != path:
            return issue(Kind.DUPLICATE_LINE, path, "it stands before already", line=line.number)
        seen.add(key)
        if definition not in self._definitions:
            message = f"there is no definition {definition!r} in the dataset"
            return issue(Kind.ORPHAN_TRACE, path, message, line=line.number)
        return None


def move_files(issues: Sequence[Issue], root: Path, backup: Backup) -> list[Issue]:
    """Move whole files into the backup; return what was moved."""
    return [one for one in issues if _move_file(one, root, backup)]


def _move_file(one: Issue, root: Path, backup: Backup) -> bool:
    path = root / one.path
    if one.kind is Kind.TORN_FILE:
        with locked(path.with_suffix("")):  # an append may be adding to it
            return backup.move(one)
    if one.kind is Kind.STALE_LOCK and not is_stale(path):
        return False  # somebody else has found its owner dead, and holds the lock now
    return backup.move(one)

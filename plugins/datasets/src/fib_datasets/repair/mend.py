"""Repair of a dataset: damaged records and files are moved to a backup folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Optional

from fib_datasets.repair.examine import (
    Diagnosis,
    Issue,
    Kind,
    LineReader,
    Remedy,
    digest,
    examine,
    stale_lock,
)
from flashinfer_bench.data import layout
from flashinfer_bench.data.storage import locked, replace_file, storage_error, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


MANIFEST = "taken.jsonl"
PREFIX = "doctor_backup_"


Taken = Any
"""What is moved, and why: an `Issue`, or an object with kind, path, line and message."""


class Backup:
    """A folder ``doctor_backup_<time>`` in a dataset, created on first use.

    Files keep their paths in it. Nothing is ever deleted or overwritten, and everything is on disk
    in the backup before it is removed from the dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    prefix : str
        Beginning of its name.
    """

    def __init__(self, root: Path, prefix: str = PREFIX) -> None:
        self._root = root
        self._prefix = prefix
        self.folder: Optional[Path] = None

    def add_lines(self, issues: Sequence[Taken], lines: Sequence[bytes]) -> None:
        """Copy lines of a file to the backup.

        Raises
        ------
        StorageError
            If they cannot be written.
        """
        self._note(issues)
        text = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
        self._append(self._place(issues[0].path), text)

    def move(self, issue: Taken) -> bool:
        """Move a file to the backup; return whether it still existed.

        Raises
        ------
        StorageError
            If it cannot be moved; it then stays in place.
        """
        self._note([issue])
        target = self._place(issue.path)
        source = self._root / issue.path
        try:
            source.rename(target)
        except FileNotFoundError:
            return False  # another process has moved it
        except OSError as error:
            raise storage_error(source, error) from error
        sync_folder(target.parent)
        sync_folder(source.parent)
        return True

    def _place(self, path: Path) -> Path:
        assert self.folder is not None
        target = self.folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(target.parent, error) from error
        return target

    def _note(self, issues: Sequence[Taken]) -> None:
        """Record what is going to be moved, and why."""
        if self.folder is None:
            self.folder = self._make()
        records = (
            {"kind": one.kind.value, "path": one.path.as_posix(), "line": one.line,
             "message": one.message}
            for one in issues
        )  # fmt: skip
        text = "".join(json.dumps(record) + "\n" for record in records)
        self._append(self.folder / MANIFEST, text.encode())

    def _make(self) -> Path:
        name = self._prefix + time.strftime("%Y%m%d_%H%M%S")
        for number in count(1):
            folder = self._root / (name if number == 1 else f"{name}_{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise storage_error(folder, error) from error
            return folder
        raise AssertionError("there are always more numbers")

    def _append(self, path: Path, text: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(path, error) from error


def _mend_file(
    relative: Path, diagnosis: Diagnosis, kinds: set[Kind], backup: Backup
) -> list[Issue]:
    """Move lines with issues of `kinds` out of a file; return these issues."""
    path = diagnosis.root / relative
    if path.is_symlink():  # rewriting would replace the link by a file
        return []
    with locked(path):
        # Read again: other processes may have appended, or moved an unfinished line.
        lines = list(LineReader(diagnosis.root).read(path))
        seen: set[bytes] = set()
        taken, out, kept = [], [], []
        for line in lines:
            found = line.problem
            if line.trace is not None:
                key, name = digest(line.raw), line.trace.definition
                message = f"the dataset has no definition {name!r}"
                if key in seen or diagnosis.first.get(key, (relative, 0))[0] != relative:
                    message = "a copy of an earlier line"
                    found = Issue(Kind.DUPLICATE_LINE, relative, message, line=line.number)
                elif name not in diagnosis.definitions:
                    found = Issue(Kind.ORPHAN_TRACE, relative, message, line=line.number)
                seen.add(key)
            if found is not None and found.kind in kinds:
                taken.append(found)
                out.append(line.raw)
            else:
                kept.append(line.raw)
        if not taken or any(line.number is None for line in lines):
            return []
        backup.add_lines(taken, out)
        replace_file(path, b"".join(kept))
    return taken


def _move_file(one: Issue, root: Path, backup: Backup) -> bool:
    path = root / one.path
    if one.kind is Kind.TORN_FILE:
        with locked(path.with_suffix("")):  # an append may be adding to it
            return backup.move(one)
    if one.kind is Kind.STALE_LOCK and not stale_lock(path):
        return False  # another process has taken over the lock
    return backup.move(one)


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    Parameters
    ----------
    taken : tuple of Issue
        Issues that were moved to the backup.
    backup : Path, optional
        The backup folder; None if nothing had to be moved.
    left : Diagnosis
        The remaining issues.
    """

    taken: tuple[Issue, ...]
    backup: Optional[Path]
    left: Diagnosis


def repair(root: Path, *, orphans: bool = False) -> Repair:
    """Move what can safely be removed from a dataset to a backup folder in it.

    Files are rewritten under their lock, so that other processes may append in the meantime. A
    second call changes nothing.

    Parameters
    ----------
    root : Path
        The dataset.
    orphans : bool
        Also move records of definitions, and files of workloads, that are not in the dataset.

    Raises
    ------
    DatasetNotFoundError, SelectionError
        As for `examine`.
    StorageError
        If something cannot be written; what was not moved yet stays in place.
    """
    layout.require_dataset(root)  # before creating a lock in it
    remedies = {Remedy.SAFE, Remedy.ORPHANS} if orphans else {Remedy.SAFE}
    with locked(root / "doctor"):  # two repairs at once might remove both of two equal lines
        found = examine(root)
        wanted = [one for one in found.issues if one.remedy in remedies]
        backup = Backup(root)
        kinds = {one.kind for one in wanted}
        taken: list[Issue] = []
        lines = (one.path for one in wanted if one.line is not None)
        for path in dict.fromkeys(lines):
            taken += _mend_file(path, found, kinds, backup)
        files = [one for one in wanted if one.line is None]
        taken += [one for one in files if _move_file(one, root, backup)]
        return Repair(tuple(taken), backup.folder, examine(root) if taken else found)

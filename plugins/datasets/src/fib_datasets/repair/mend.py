"""Repairing a dataset: what is damaged goes into a backup folder, and nothing is lost."""

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
"""What is taken out, and why: an `Issue`, or what has kind, path, line and message like one."""


class Backup:
    """A folder ``doctor_backup_<time>`` in a dataset, made when the first thing is put there.

    What is put there keeps its path. Nothing is ever deleted or overwritten, and everything is on
    disk before it is gone from where it was.

    Parameters
    ----------
    root : Path
        The dataset.
    prefix : str
        What its name begins with.
    """

    def __init__(self, root: Path, prefix: str = PREFIX) -> None:
        self._root = root
        self._prefix = prefix
        self.folder: Optional[Path] = None

    def add_lines(self, issues: Sequence[Taken], lines: Sequence[bytes]) -> None:
        """Copy lines of one file.

        Raises
        ------
        StorageError
            If they cannot be written.
        """
        self._note(issues)
        text = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
        self._append(self._place(issues[0].path), text)

    def move(self, issue: Taken) -> bool:
        """Move a file; return whether it was still there.

        Raises
        ------
        StorageError
            If it cannot be moved; it is then where it was.
        """
        self._note([issue])
        target = self._place(issue.path)
        source = self._root / issue.path
        try:
            source.rename(target)
        except FileNotFoundError:
            return False  # somebody else has taken it away meanwhile
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
        """Write down what is going to be taken, and why."""
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
    """Take the lines of `kinds` out of one file; return what was taken."""
    path = diagnosis.root / relative
    if path.is_symlink():  # it would become a file of its own
        return []
    with locked(path):
        # Read again: other processes may have appended, or moved an unfinished line aside.
        lines = list(LineReader(diagnosis.root).read(path))
        seen: set[bytes] = set()
        taken, out, kept = [], [], []
        for line in lines:
            found = line.problem
            if line.trace is not None:
                key, name = digest(line.raw), line.trace.definition
                message = f"there is no definition {name!r} in the dataset"
                if key in seen or diagnosis.first.get(key, (relative, 0))[0] != relative:
                    message = "it stands before already"
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
        return False  # somebody else has found its owner dead, and holds the lock now
    return backup.move(one)


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
    layout.require_dataset(root)  # before a lock is made in it
    remedies = {Remedy.SAFE, Remedy.ORPHANS} if orphans else {Remedy.SAFE}
    with locked(root / "doctor"):  # two at a time might take both of two equal lines
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

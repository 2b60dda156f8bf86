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
    Remedy,
    digest,
    examine,
    raw_lines,
    stale_lock,
)
from flashinfer_bench.data import layout
from flashinfer_bench.data.storage import locked, replace_file, storage_error, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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

    def take_lines(self, path: Path, wanted: Mapping[int, tuple[bytes, Taken]]) -> list[int]:
        """Move lines of a file to the backup, if they are unchanged since they were examined.

        Parameters
        ----------
        path : Path
            The file, relative to the dataset.
        wanted : mapping of int to (bytes, Issue)
            Digest of each line, and why it is moved, by the index of the line.

        Returns
        -------
        list of int
            Indices of the lines that were moved.

        Raises
        ------
        StorageError
            If something cannot be written; the file is then unchanged.
        """
        file = self._root / path
        if file.is_symlink():  # rewriting would replace the link by a file
            return []
        with locked(file):
            # Other processes may have appended, or moved an unfinished line.
            taken, out, left = [], [], []
            for place, (number, raw) in enumerate(raw_lines(file)):
                if place in wanted and digest(raw) == wanted[place][0]:
                    taken.append(place)
                    out.append(raw if raw.endswith(b"\n") else raw + b"\n")
                else:  # a JSON document over several lines becomes one record per line
                    left.append(raw if number is not None else raw + b"\n")
            if taken:
                self._note([wanted[place][1] for place in taken])
                self._append(self._place(path), b"".join(out))
                replace_file(file, b"".join(left))
        return taken

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
        files: list[Issue] = []
        lines: dict[Path, dict[int, tuple[bytes, Issue]]] = {}
        for one in found.issues:
            if one.remedy in remedies and one.line is not None:
                known = found.digests[one.path, one.line], one
                lines.setdefault(one.path, {})[one.line - 1] = known
            elif one.remedy in remedies:
                files.append(one)
        backup = Backup(root)
        taken: list[Issue] = []
        for path, wanted in lines.items():
            taken += [wanted[place][1] for place in backup.take_lines(path, wanted)]
        taken += [one for one in files if _move_file(one, root, backup)]
        return Repair(tuple(taken), backup.folder, examine(root) if taken else found)

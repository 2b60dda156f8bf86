"""The folder that takes what a repair takes out."""

from __future__ import annotations

import json
import os
import time
from itertools import count
from typing import TYPE_CHECKING, Optional, Protocol

from flashinfer_bench.data.storage import storage_error, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import Enum
    from pathlib import Path

MANIFEST = "taken.jsonl"
PREFIX = "doctor_backup_"


class Taken(Protocol):
    """What is taken out, and why; an `Issue` is one."""

    @property
    def kind(self) -> Enum:
        """The reason; its value is a word."""

    @property
    def path(self) -> Path:
        """The file, relative to the dataset."""

    @property
    def line(self) -> Optional[int]:
        """Line in the file, from 1; None for the file itself."""

    @property
    def message(self) -> str:
        """What is wrong."""


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

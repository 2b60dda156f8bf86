"""The uuids of a file of workloads, read once and then only where it has grown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Optional

import msgspec

from flashinfer_bench.data.jsonl import read_whole
from flashinfer_bench.tracing.store.seen import Seen

if TYPE_CHECKING:
    from pathlib import Path

_TAIL = 4096
"""Bytes before the end of what was read that must not have changed, or else all is read anew.

Whoever rewrites a file as a whole (`fib sanitize`, git, most editors) makes a new one, which is
noticed in any case. Written over in place, with the same last lines, it is not noticed.
"""


class _Workload(msgspec.Struct, gc=False):
    uuid: str


class _Line(msgspec.Struct, gc=False):
    workload: _Workload


class _Extent(NamedTuple):
    """What was read: of which file, how far, and the bytes before that place."""

    device: int
    inode: int
    end: int
    tail: bytes


class KnownWorkloads:
    """The workloads that a file holds. To be used while nobody rewrites the file.

    Parameters
    ----------
    path : Path
        The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._uuids = Seen()
        self._extent: Optional[_Extent] = None
        self._decode = msgspec.json.Decoder(_Line).decode

    def refresh(self) -> Seen:
        """Return the uuids of all its lines; lines that are none of a workload are passed over.

        Raises
        ------
        OSError
            If the file is there and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except FileNotFoundError:
            self.forget()
        return self._uuids

    def forget(self) -> None:
        """Read everything the next time."""
        self._uuids, self._extent = Seen(), None

    def _read(self, file: BinaryIO) -> None:
        begin = self._grown_from(file)
        if begin is None:
            self.forget()
            whole = read_whole(self._path)
            if whole is not None:  # one JSON document over several lines: read anew each time
                self._add_all(whole)
                return
            begin = 0
        self._read_lines(file, begin)

    def _grown_from(self, file: BinaryIO) -> Optional[int]:
        """Return where new lines begin, or None if it is not the file that was read before."""
        if self._extent is None:
            return None
        info = os.fstat(file.fileno())
        known = self._extent
        if (info.st_dev, info.st_ino) != known[:2] or info.st_size < known.end:
            return None
        tail = os.pread(file.fileno(), len(known.tail), known.end - len(known.tail))
        return known.end if tail == known.tail else None

    def _read_lines(self, file: BinaryIO, begin: int) -> None:
        file.seek(begin)
        end = begin
        for line in file:
            self._add(line)
            if line.endswith(b"\n"):  # else its writer has died, and an append will deal with it
                end += len(line)
        info = os.fstat(file.fileno())
        length = min(_TAIL, end)
        tail = os.pread(file.fileno(), length, end - length)
        self._extent = _Extent(info.st_dev, info.st_ino, end, tail)

    def _add_all(self, records: list[bytes]) -> None:
        for record in records:
            self._add(record)

    def _add(self, line: bytes) -> None:
        try:
            self._uuids.add(self._decode(line).workload.uuid)
        except msgspec.MsgspecError:  # blank, broken, or of a release that had no uuids
            return

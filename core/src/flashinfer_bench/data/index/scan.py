"""Reading a data file into the index: all of it, or only what was appended."""

from __future__ import annotations

import codecs
import os
import time
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Optional

from flashinfer_bench.data.index.lean import LineReader
from flashinfer_bench.data.index.part import (
    BadLine,
    Extent,
    Identity,
    Part,
    checksum,
    make_part,
)
from flashinfer_bench.data.jsonl import first_line_is_object, is_torn, read_whole
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data.index.columns import Columns
    from flashinfer_bench.data.trace_reader import TraceReader

_BLOCK = 1 << 18
_NOTHING = Extent(0, 0, 0, 0, fixed=False)


def look_at(path: Path, name: str, known: Optional[Part], reader: TraceReader) -> tuple[Part, int]:
    """Return what is in a file, reading as little of it as proves enough.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Its path in the dataset.
    known : Part, optional
        What was known of it before.
    reader : TraceReader
        The ordinary way of reading, for unusual lines.

    Returns
    -------
    part : Part
        What is in the file now; `known` itself if that still holds.
    read : int
        Bytes that had to be read.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    if known is not None and known.settled and Identity.of(path.stat()) == known.identity:
        return known, 0
    now = time.time_ns()  # before the look at the time stamps: what comes after it is unsettled
    with path.open("rb") as file:
        identity = Identity.of(os.fstat(file.fileno()))
        settled = identity.is_settled(now)
        if known is not None and not holds(file, known):
            known = None
        if known is not None and (known.extent.fixed or known.identity.size == identity.size):
            part = _renewed(known, identity, settled=settled)
        elif known is not None or first_line_is_object(path):
            part = _read_lines(file, path, name, known, reader, identity, settled=settled)
        else:
            part = _read_fixed(file, path, name, reader, identity, settled=settled)
        return part, identity.size


def holds(file: BinaryIO, part: Part) -> bool:
    """Return whether a file still begins with what was read of it."""
    info = os.fstat(file.fileno())
    if part.settled and Identity.of(info) == part.identity:
        return True
    extent = part.extent
    fits = info.st_size == extent.end if extent.fixed else info.st_size >= extent.end
    return fits and checksum(file.fileno(), extent.end) == extent.crc


def _renewed(known: Part, identity: Identity, *, settled: bool) -> Part:
    """Return `known` for the same content, written at another time."""
    return replace(known, identity=identity, settled=settled)


class _Scan:
    """The state of reading one file line by line."""

    def __init__(self, path: Path, reader: TraceReader, after: Extent) -> None:
        self.reader = LineReader(reader, path)
        self.bad: list[BadLine] = []
        self.end, self.crc, self.lines = after.end, after.crc, after.lines

    def read(self, file: BinaryIO) -> bytes:
        """Read all finished lines; return what comes after the last."""
        block = bytearray(_BLOCK)  # filled again and again, which is quicker than making new ones
        while True:
            file.seek(self.end)
            size = file.readinto(block)  # type: ignore[attr-defined]
            cut = block.rfind(b"\n", 0, size) + 1
            if cut:
                self._read_block(block, cut)
            if size < len(block):
                return bytes(block[cut:size])
            if not cut:  # a very long line
                block = bytearray(2 * len(block))

    def _read_block(self, block: bytearray, end: int) -> None:
        with memoryview(block) as view, view[:end] as lines:
            self.crc = zlib.crc32(lines, self.crc)
        base, self.end = self.end, self.end + end
        start = len(codecs.BOM_UTF8) if not base and block.startswith(codecs.BOM_UTF8) else 0
        reading = self.reader.read_block(block, start, end, base, self.lines + 1)
        for at, stop, line in reading:
            self._read(bytes(block[at:stop]), base + at, line)
        self.lines = self.reader.last_line

    def tail(self, text: bytes) -> None:
        """Read the last line, which lacks its newline."""
        self.lines += 1
        mark = codecs.BOM_UTF8 if not self.end else b""
        stripped = text.removeprefix(mark)
        self._read(stripped, self.end + len(text) - len(stripped), self.lines)
        self.end, self.crc = self.end + len(text), zlib.crc32(text, self.crc)

    def _read(self, text: bytes, offset: int, line: int) -> None:
        if not text or text.isspace():
            return
        try:
            self.reader.read(text, offset, line)
        except DataError:
            self.bad.append(BadLine(line, offset, len(text)))


def _read_lines(
    file: BinaryIO,
    path: Path,
    name: str,
    known: Optional[Part],
    reader: TraceReader,
    identity: Identity,
    *,
    settled: bool,
) -> Part:
    """Read the lines that are not known yet."""
    scan = _Scan(path, reader, known.extent if known is not None else _NOTHING)
    tail = scan.read(file)
    torn, fixed = 0, False
    mark = codecs.BOM_UTF8 if not scan.end else b""
    if is_torn(tail.removeprefix(mark)):
        torn = len(tail)
    elif tail and not tail.isspace():
        scan.tail(tail)
        fixed = True
    extent = Extent(scan.end, scan.crc, scan.lines, torn, fixed)
    columns, bad = scan.reader.columns(), scan.bad
    if known is not None:
        columns, bad = known.columns().joined(columns), known.bad + bad
    return make_part(name, identity, extent, columns, settled=settled, whole=False, bad=bad)


def _read_fixed(
    file: BinaryIO, path: Path, name: str, reader: TraceReader, identity: Identity, *, settled: bool
) -> Part:
    """Read a file that does not begin with an object on a line of its own."""
    crc = checksum(file.fileno(), identity.size)
    records = read_whole(path)
    if records is None:
        part = _read_lines(file, path, name, None, reader, identity, settled=settled)
        end = identity.size
        part.extent = Extent(end, crc or 0, part.extent.lines, part.extent.torn, fixed=True)
        return part
    extent = Extent(identity.size, crc or 0, 0, 0, fixed=True)
    columns, bad = _read_records(records, LineReader(reader, path))
    return make_part(name, identity, extent, columns, settled=settled, whole=True, bad=bad)


def _read_records(records: list[bytes], reader: LineReader) -> tuple[Columns, list[BadLine]]:
    bad = []
    for number, text in enumerate(records):
        try:
            reader.read(text, number, None)
        except DataError:
            bad.append(BadLine(None, number, 0))
    return reader.columns(), bad

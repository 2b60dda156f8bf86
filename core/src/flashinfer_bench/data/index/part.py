"""What is known of one data file, and whether it still holds."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data.index.columns import Columns
from flashinfer_bench.data.index.digest import (
    Digests,
    decode_digests,
    digest_columns,
    encode_digests,
)
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from flashinfer_bench.data.index.container import Section

SETTLE_NS = 2_000_000_000
"""A file that changed later than this before it was read may change again at the same time stamp.

Time stamps are as coarse as 2 s (FAT) and 1 s (older network file systems).
"""

_BLOCK = 1 << 20


class StaleIndexError(DataError):
    """A file was changed after it was indexed; look at it again."""


class Identity(NamedTuple):
    """What the file system says of a file. It changes with every change of the content.

    Nobody can set `ctime_ns`, so that a time stamp that was put back does not hide a change.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, info: os.stat_result) -> Identity:
        """Return the identity of what `os.stat` or `os.fstat` looked at."""
        return cls(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)

    def is_settled(self, now_ns: int) -> bool:
        """Return whether a change after `now_ns` would be seen in the time stamps."""
        return now_ns - max(self.mtime_ns, self.ctime_ns) > SETTLE_NS


class BadLine(NamedTuple):
    """A line that is not a trace: its number (None in a file of one document) and place."""

    line: Optional[int]
    offset: int
    length: int


class Extent(NamedTuple):
    """How much of a file was read.

    ``end`` is the end of its last whole line, ``crc`` the checksum of everything before, ``lines``
    the number of lines. ``torn`` bytes after it are left out. Where ``fixed`` is set, the file
    is not a sequence of finished lines: any change means to read it anew.
    """

    end: int
    crc: int
    lines: int
    torn: int
    fixed: bool


@dataclass
class Part:
    """The index of one file.

    Parameters
    ----------
    path : str
        The file, relative to the dataset.
    identity : Identity
        The file as it was read.
    settled : bool
        Whether an equal identity proves an equal file.
    extent : Extent
        What was read.
    whole : bool
        Whether the file is one JSON document; offsets are then numbers of records.
    bad : list of BadLine
        What could not be read.
    names : list of str
        Definitions of the runs, in the order in which they are met.
    packed_digests : bytes
        For rankings.
    section : Section, optional
        Where the columns are kept, if they are not in memory.
    """

    path: str
    identity: Identity
    settled: bool
    extent: Extent
    whole: bool
    bad: list[BadLine]
    names: list[str]
    packed_digests: bytes
    section: Optional[Section] = None
    _columns: Optional[Columns] = field(default=None, repr=False)
    _digests: Optional[Digests] = field(default=None, repr=False)

    def columns(self) -> Columns:
        """Return the columns.

        Raises
        ------
        StaleIndexError
            If they were in a file that has been deleted or replaced.
        """
        if self._columns is None:
            assert self.section is not None
            self._columns = Columns.from_bytes(self.section.read())
        return self._columns

    def packed_columns(self) -> bytes:
        """Return the columns as they are kept.

        Raises
        ------
        StaleIndexError
            If they were in a file that has been deleted or replaced.
        """
        if self._columns is not None or self.section is None:
            return self.columns().to_bytes()
        return self.section.read()

    def digests(self) -> Digests:
        """Return what rankings need, by definition."""
        if self._digests is None:
            self._digests = decode_digests(self.packed_digests)
        return self._digests


def make_part(
    path: str,
    identity: Identity,
    extent: Extent,
    columns: Columns,
    *,
    settled: bool,
    whole: bool,
    bad: list[BadLine],
) -> Part:
    """Digest columns and return all that is known of a file."""
    digests = digest_columns(columns)
    packed = encode_digests(digests)
    part = Part(path, identity, settled, extent, whole, bad, list(digests), packed)
    part._columns, part._digests = columns, digests
    return part


def checksum(descriptor: int, end: int) -> Optional[int]:
    """Return the CRC-32 of the first `end` bytes of a file; None if it is shorter."""
    crc = at = 0
    while at < end:
        block = os.pread(descriptor, min(_BLOCK, end - at), at)
        if not block:
            return None
        crc = zlib.crc32(block, crc)
        at += len(block)
    return crc

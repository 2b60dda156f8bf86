"""The file in which the index is kept.

A header with what is known of each data file comes first, their columns after it; these are read
one by one when a question needs them. The file is only ever replaced as a whole, and everything
in it is covered by checksums, so that it need not be locked, and may be torn or deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

import msgspec

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.data.index.columns import STATUSES, TYPES
from flashinfer_bench.data.index.part import BadLine, Extent, Identity, Part, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable

_logger = logging.getLogger(__name__)

_FORMAT = ":".join(["2", __version__, sys.byteorder, TYPES, *(one.value for one in STATUSES)])
_MAGIC = b"fibindex" + hashlib.sha256(_FORMAT.encode()).digest()[:8]
_START = struct.Struct("<16s16sQI")  # magic, number of this build, length and CRC of the header


class _Record(msgspec.Struct, array_like=True):
    path: str
    identity: tuple[int, int, int, int]
    settled: bool
    extent: tuple[int, int, int, int, bool]
    whole: bool
    bad: list[tuple[Optional[int], int, int]]
    names: list[str]
    digests: bytes
    place: tuple[int, int, int]  # of the columns: offset after the header, length, CRC


_header = msgspec.msgpack.Decoder(list[_Record])


class Section(NamedTuple):
    """A stretch of the file, as it was when it was opened."""

    file: str
    build: bytes
    offset: int
    length: int
    crc: int

    def read(self) -> bytes:
        """Return the bytes.

        Raises
        ------
        StaleIndexError
            If the file has been replaced, deleted or damaged.
        """
        try:
            with Path(self.file).open("rb") as file:
                magic, build, *_ = _START.unpack(file.read(_START.size))
                file.seek(self.offset)
                data = file.read(self.length)
        except (OSError, struct.error) as error:
            raise StaleIndexError(f"cannot be read: {error}", path=Path(self.file)) from error
        if (magic, build) != (_MAGIC, self.build) or zlib.crc32(data) != self.crc:
            raise StaleIndexError("was replaced or damaged", path=Path(self.file))
        return data


def index_file(root: Path) -> Path:
    """Return the file that holds the index of a dataset."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return env.cache_path() / "index" / digest / "traces.idx"


def load_parts(file: Path) -> dict[str, Part]:
    """Return what is known of each data file, by its path in the dataset.

    Nothing, if there is no index, or it is damaged, or of another release.
    """
    try:
        return _load(file)
    except FileNotFoundError:
        _logger.debug("there is no index %s yet", file)
    except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
        _logger.info("the index %s cannot be used and is made anew: %s", file, error)
    return {}


def _load(path: Path) -> dict[str, Part]:
    with path.open("rb") as file:
        magic, build, length, crc = _START.unpack(file.read(_START.size))
        if magic != _MAGIC:
            raise ValueError("it is of another release, or no index")
        size = os.fstat(file.fileno()).st_size
        if length > size:
            raise ValueError("it is cut off")
        data = file.read(length)
    if zlib.crc32(data) != crc:
        raise ValueError("its checksum is wrong")
    base = _START.size + length
    return {
        one.path: Part(
            one.path,
            Identity(*one.identity),
            one.settled,
            Extent(*one.extent),
            one.whole,
            [BadLine(*bad) for bad in one.bad],
            one.names,
            one.digests,
            Section(str(path), build, base + one.place[0], *one.place[1:]),
        )
        for one in _header.decode(data)
    }


def save_parts(file: Path, parts: Iterable[Part]) -> bool:
    """Write an index; without one everything works too, only slower.

    Returns
    -------
    bool
        Whether it could be written.
    """
    try:
        _save(file, parts)
    except (OSError, StaleIndexError) as error:
        _logger.debug("the index %s is not kept: %s", file, error)
        return False
    return True


def _save(path: Path, parts: Iterable[Part]) -> None:
    records: list[_Record] = []
    sections: list[bytes] = []
    offset = 0
    kept = list(parts)
    for part in kept:
        data = part.packed_columns()
        records.append(_record(part, (offset, len(data), zlib.crc32(data))))
        sections.append(data)
        offset += len(data)
    header = msgspec.msgpack.encode(records)
    build = os.urandom(16)
    start = _START.pack(_MAGIC, build, len(header), zlib.crc32(header))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:  # not synced: checksums tell what was lost
            file.writelines([start, header, *sections])
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    base = len(start) + len(header)
    for part, record in zip(kept, records, strict=True):
        part.section = Section(str(path), build, base + record.place[0], *record.place[1:])


def _record(part: Part, place: tuple[int, int, int]) -> _Record:
    return _Record(
        part.path,
        part.identity,
        part.settled,
        part.extent,
        part.whole,
        list(part.bad),
        part.names,
        part.packed_digests,
        place,
    )

"""A derived index of the traces of a dataset, so that questions need not read all of them.

Every data file has one `Part`, with one row for each of its lines. All parts are kept in one file
below ``FIB_CACHE_PATH``, which is replaced as a whole when much of the dataset was read anew. It
holds nothing that is not in the dataset; whoever deletes it loses a second.
"""

from __future__ import annotations

import codecs
import hashlib
import logging
import os
import sys
import time
import zlib
from array import array
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional

import msgspec

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.data import layout
from flashinfer_bench.data.index.lines import decode_line
from flashinfer_bench.data.index.rows import PASSED, STATUSES, TYPES, Rows, RowWriter
from flashinfer_bench.data.jsonl import is_torn, read_whole, warn_of_torn_line
from flashinfer_bench.data.loader import unreadable
from flashinfer_bench.data.ranking import Runs
from flashinfer_bench.data.run_source import RunColumns, RunDetails, RunRow
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.trace import Trace

__all__ = ["Rows", "StaleIndexError", "TraceIndex", "index_file"]

_logger = logging.getLogger(__name__)

SMALLEST = 1 << 18
"""Bytes; an index is written if at least so much had to be read to bring it up to date."""

_SHARE = 16
"""An index is written if at least this part of the dataset had to be read."""

SETTLE_NS = 2_000_000_000
"""A file that changed later than this before it was read may change again at the same time stamp.

Time stamps are as coarse as 2 s (FAT) and 1 s (older network file systems).
"""


class StaleIndexError(DataError):
    """A file was changed after it was indexed; look at it again."""


class BadLine(NamedTuple):
    """A line that is not a trace: its number (None in a file of one document) and place."""

    line: Optional[int]
    offset: int
    length: int


Identity = tuple[int, ...]
"""What the file system says of a file: size, times of change and inode.

It changes with every change of the content: nobody can set the second time (``ctime``), so that a
time stamp that was put back does not hide a change.
"""


def _identity(file: BinaryIO) -> Identity:
    info = os.fstat(file.fileno())
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


class Part(msgspec.Struct, array_like=True, dict=True):
    """What is known of one file.

    Attributes
    ----------
    name : bytes
        The file, relative to the dataset, as the system writes it.
    identity : Identity
        The file as it was before it was read; empty if an equal one would not prove an equal file.
    end, crc, lines : int
        Where the last line ends that was read, checksum of everything before, number of lines.
    torn : int
        Bytes after that, which are left out.
    grows : bool
        Whether the file is a sequence of finished lines. If not, any change means to read it anew.
    bad : list of BadLine
        What could not be read.
    digests : dict of str to Runs
        What rankings need, by definition in the order in which they are met.
    packed : Raw
        The rows.
    """

    name: bytes
    identity: Identity
    end: int = 0
    crc: int = 0
    lines: int = 0
    torn: int = 0
    grows: bool = True
    bad: list[BadLine] = []
    digests: dict[str, Runs] = {}
    packed: msgspec.Raw = msgspec.Raw()

    @cached_property
    def rows(self) -> Rows:
        """The rows: a file that is one JSON document has numbers of records for offsets."""
        return _decode_rows(self.packed)

    def holds(self, file: BinaryIO) -> bool:
        """Return whether a file still begins with what was read of it."""
        identity = _identity(file)
        if identity == self.identity:
            return True
        fits = identity[0] >= self.end if self.grows else identity[0] == self.end
        return fits and _checksum(file, self.end) == self.crc


def _pack_hook(column: array[Any]) -> tuple[str, bytes]:
    return column.typecode, column.tobytes()


def _unpack_hook(kind: type, packed: tuple[str, bytes]) -> array[Any]:
    return array(*packed)


_encode = msgspec.msgpack.Encoder(enc_hook=_pack_hook).encode
_decode_rows = msgspec.msgpack.Decoder(Rows, dec_hook=_unpack_hook).decode
_decode_parts = msgspec.msgpack.Decoder(list[Part]).decode


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the CRC-32 of the first `end` bytes of a file."""
    file.seek(0)
    crc = 0
    while end > 0 and (block := file.read(min(end, 1 << 20))):
        crc = zlib.crc32(block, crc)
        end -= len(block)
    return crc


# ------------------------------------------------------------------------------- reading a file


def _look_at(path: Path, name: bytes, known: Optional[Part], traces: TraceReader) -> Part:
    """Return what is in a file, reading as little of it as proves enough."""
    now = time.time_ns()  # before the look at the time stamps: what comes after it is unsettled
    with path.open("rb", buffering=1 << 18) as file:
        identity = _identity(file)
        if known is not None and known.identity == identity:
            return known
        is_settled = now - max(identity[1:3]) > SETTLE_NS  # else a change may leave no trace in it
        trusted = identity if is_settled else ()
        if known is not None and not known.holds(file):
            known = None
        if known is not None and known.end == identity[0]:
            return msgspec.structs.replace(known, identity=trusted, torn=0)
        part = Part(name, trusted)
        whole = read_whole(file)
        if whole is not None:
            content, records = whole
            part.end, part.crc, part.grows = len(content), zlib.crc32(content), False
            reader = _Reader(part, path, traces, Rows())
            for number, text in enumerate(records):
                reader.read(text, number, None)
            return reader.finish()
        rows = None
        if known is not None:
            rows = known.rows
            part.end, part.crc, part.lines = known.end, known.crc, known.lines
            part.bad = list(known.bad)
        reader = _Reader(part, path, traces, rows)
        reader.read_lines(file)
        return reader.finish()


class _Reader:
    """Adds the lines of a file to a part."""

    def __init__(self, part: Part, path: Path, traces: TraceReader, rows: Optional[Rows]) -> None:
        self._part, self._path, self._traces = part, path, traces
        self._writer = RowWriter(rows)

    def read_lines(self, file: BinaryIO) -> None:
        """Read the lines behind those that are known."""
        part = self._part
        end, crc, lines = part.end, part.crc, part.lines
        file.seek(end)
        for raw in file:
            is_finished = raw.endswith(b"\n")
            if not self._read_quickly(raw, end):
                mark = len(codecs.BOM_UTF8) if not end and raw.startswith(codecs.BOM_UTF8) else 0
                if not is_finished and is_torn(raw[mark:]):
                    part.torn = len(raw)
                    break
                self.read(raw[mark:], end + mark, lines + 1)
            end, crc, lines = end + len(raw), zlib.crc32(raw, crc), lines + is_finished
            part.grows = is_finished or raw.isspace()
        part.end, part.crc, part.lines = end, crc, lines

    def _read_quickly(self, raw: bytes, offset: int) -> bool:
        """Read a line of today's format, as nearly all are; return whether it is one."""
        lean = decode_line(raw)
        if lean is None:
            return False
        workload = bytes(lean.workload)
        is_known = self._traces.knows_workload(lean.definition, workload)
        if is_known:
            self._writer.add(lean, workload, offset, len(raw))
        return is_known

    def read(self, raw: bytes, offset: int, line: Optional[int]) -> None:
        """Read one line, with its place and number; it may be a bad one."""
        text = raw.strip()
        if not text or self._read_quickly(text, offset):
            return
        try:
            trace = self._traces.read(text, path=self._path, line=line)
        except DataError:
            self._part.bad.append(BadLine(line, offset, len(raw)))
        else:
            workload = trace.workload.model_dump_json().encode()
            self._writer.add(trace, workload, offset, len(raw))

    def finish(self) -> Part:
        """Return the part with its rows."""
        rows, part = self._writer.finish(), self._part
        part.digests = _digest(rows)
        part.packed = msgspec.Raw(_encode(rows))
        return part


def _digest(rows: Rows) -> dict[str, Runs]:
    names, columns = rows.workload_names(), rows.columns
    found = {one.definition: Runs() for one in rows.heads if one.solution is not None}
    adders = [
        one.solution and partial(found[one.definition].add, one.solution, names[one.workload].uuid)
        for one in rows.heads
    ]
    for place, status, time_ms in zip(
        columns.head, columns.status, columns.latency_ms, strict=True
    ):
        if add := adders[place]:
            add(time_ms if status == PASSED else None)
    return found


# ------------------------------------------------------------------- the file that keeps the parts

_FORMAT = ":".join(["4", __version__, sys.byteorder, TYPES, *(one.value for one in STATUSES)])
_MAGIC = b"fibindex" + hashlib.sha256(_FORMAT.encode()).digest()[:8]


def index_file(root: Path) -> Path:
    """Return the file that holds the index of a dataset."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return env.cache_path() / "index" / digest / "traces.idx"


def _load(file: Path) -> dict[bytes, Part]:
    """Return what is known of each data file: nothing, if there is no index that can be used."""
    try:
        data = memoryview(file.read_bytes())
        start = len(_MAGIC) + 4
        if data[:start] != _MAGIC + zlib.crc32(data[start:]).to_bytes(4, "little"):
            raise ValueError("it is damaged, or of another release")
        return {part.name: part for part in _decode_parts(data[start:])}
    except FileNotFoundError:
        _logger.debug("there is no index %s yet", file)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        _logger.info("the index %s cannot be used and is made anew: %s", file, error)
    return {}


def _save(file: Path, parts: Iterable[Part]) -> None:
    """Write an index; without one everything works too, only slower."""
    data = _encode(list(parts))
    try:
        replace_file(file, _MAGIC + zlib.crc32(data).to_bytes(4, "little") + data)
    except StorageError as error:
        _logger.debug("the index %s is not kept: %s", file, error)


# ------------------------------------------------------------------------------------- questions


class TraceIndex:
    """The traces of a dataset as they were when it was opened.

    Parameters
    ----------
    root : Path
        The dataset.
    parts : sequence of Part
        Its files, in the order in which they are read.
    errors : sequence of DataError
        Files and folders that cannot be read.

    Attributes
    ----------
    has_errors : bool
        Whether there are files or lines that cannot be read.
    torn_lines : list of DataError
        Unfinished last lines, which are left out.
    """

    def __init__(self, root: Path, parts: Sequence[Part], errors: Sequence[DataError] = ()) -> None:
        self._root, self._parts, self._unreadable = root, list(parts), list(errors)
        self.has_errors = bool(errors) or any(part.bad for part in parts)
        self.torn_lines = [
            DataError(
                "left out an unfinished last line", path=self._path(part), line=part.lines + 1
            )
            for part in parts
            if part.torn
        ]
        self._traces = TraceReader()

    @classmethod
    def open(cls, root: Path) -> TraceIndex:
        """Bring the index of a dataset up to date; that it cannot be written is no error."""
        kept = index_file(root)
        known, traces = _load(kept), TraceReader()
        parts: list[Part] = []
        errors: list[DataError] = []
        work = size = 0
        for folder in (root / layout.WORKLOADS, root / layout.TRACES):

            def tell(error: OSError, path: Path = folder) -> None:
                errors.append(unreadable(Path(error.filename or path), error))

            for path in layout.files(folder, ".jsonl", ".json", on_error=tell):
                name = os.fsencode(path.relative_to(root))
                try:
                    part = _look_at(path, name, known.get(name), traces)
                except FileNotFoundError:  # deleted since it was listed
                    continue
                except OSError as error:
                    tell(error, path)
                    continue
                if part.torn:
                    warn_of_torn_line(path, part.torn)
                parts.append(part)
                size += part.end + part.torn
                work += part.end + part.torn if part is not known.get(name) else 0
        if work >= max(SMALLEST, size // _SHARE) and work:
            _save(kept, parts)
        return cls(root, parts, errors)

    def errors(self) -> list[DataError]:
        """Return what is wrong with the files and lines that could not be read.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile.
        """
        found = list(self._unreadable)
        for part in (one for one in self._parts if one.bad):
            texts = self._texts(part, [(bad.offset, bad.length) for bad in part.bad])
            for bad, text in zip(part.bad, texts, strict=True):
                try:
                    self._traces.read(text, path=self._path(part), line=bad.line)
                except DataError as error:
                    found.append(error)
                else:
                    raise StaleIndexError("was changed", path=self._path(part))
        return found

    def names(self) -> list[str]:
        """Return the definitions that have runs, in the order in which they are met."""
        return list(dict.fromkeys(name for part in self._parts for name in part.digests))

    def runs(self, definition: str) -> Runs:
        """Return the runs of a definition, digested."""
        several = [part.digests[definition] for part in self._parts_of(definition)]
        if len(several) == 1:
            return several[0]
        whole = Runs()
        for one in several:
            whole.update(one)
        return whole

    def best(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor; of equals the first.

        Raises
        ------
        StaleIndexError
            If the dataset was changed meanwhile, as all that follow.
        """
        places = self._passing(definition, axes, atol, rtol)
        found = max(places, key=lambda one: one[0].rows.columns.speedup[one[1]], default=None)
        return None if found is None else next(self._read([found]))

    def filtered(self, definition: str, atol: float, rtol: float) -> list[Trace]:
        """Return the traces that passed within both tolerances."""
        return list(self._read(self._passing(definition, None, atol, rtol)))

    def _passing(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Iterator[tuple[Part, int]]:
        for part in self._parts_of(definition):
            for number in part.rows.passing(definition, axes, atol, rtol):
                yield part, number

    def columns(self, definition: str) -> RunColumns:
        """Return the runs of a definition without making traces."""
        fields: list[list[Any]] = [[] for _ in range(len(RunRow.__struct_fields__) + 1)]
        places: list[tuple[Part, int]] = []
        for part in self._parts_of(definition):
            numbers = part.rows.runs_of(definition)
            places += [(part, number) for number in numbers]
            for whole, more in zip(fields, part.rows.fields(numbers), strict=True):
                whole += more

        def details(numbers: Sequence[int]) -> list[RunDetails]:
            return list(self._details([places[number] for number in numbers]))

        *columns, samples = fields
        return RunColumns(columns, samples, details)

    def rows(self) -> Iterator[Rows]:
        """Yield the rows of each file that has runs."""
        return (part.rows for part in self._parts if part.digests)

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace of a definition, in their order."""
        uuids = []
        for rows in (part.rows for part in self._parts):
            names = rows.workload_names()
            for head in (rows.heads[place] for place in rows.columns.head):
                if head.definition == definition and head.solution is None:
                    uuids.append(names[head.workload].uuid)
        return uuids

    # ----------------------------------------------------------------------- from rows to traces

    def _path(self, part: Part) -> Path:
        return self._root / os.fsdecode(part.name)

    def _parts_of(self, definition: str) -> Iterator[Part]:
        return (part for part in self._parts if definition in part.digests)

    def _read(self, places: Iterable[tuple[Part, int]]) -> Iterator[Trace]:
        """Read some lines."""
        for part, text in self._lines(places):
            yield self._traces.read(text, path=self._path(part), line=None)

    def _details(self, places: Iterable[tuple[Part, int]]) -> Iterator[RunDetails]:
        """Read logs and samples of some lines."""
        for part, text in self._lines(places):
            one = decode_line(text) or self._traces.read(text, path=self._path(part), line=None)
            yield RunDetails.of(one.evaluation)

    def _lines(self, places: Iterable[tuple[Part, int]]) -> Iterator[tuple[Part, bytes]]:
        for _, group in groupby(places, key=lambda place: place[0].name):
            part, *_ = (some := list(group))[0]
            offsets, lengths = part.rows.columns.offset, part.rows.columns.length
            texts = self._texts(part, [(offsets[number], lengths[number]) for _, number in some])
            yield from ((part, text) for text in texts)

    def _texts(self, part: Part, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Yield some records of a file, unless it was changed."""
        path = self._path(part)
        try:
            with path.open("rb") as file:
                if not part.holds(file):
                    raise StaleIndexError("was changed", path=path)
                whole = None if part.grows else read_whole(file)
                for offset, length in places:
                    if whole is not None:
                        yield whole[1][offset]
                    else:
                        file.seek(offset)
                        yield file.read(length).strip()
        except (OSError, IndexError) as error:
            raise StaleIndexError(f"was changed: {error}", path=path) from error

"""A derived index of the traces of a dataset, so that queries need not read all of them.

Every data file has one `Part`, with one row for each run in it. All parts are stored in one file
below ``FIB_CACHE_PATH``, which is replaced as a whole when much of the dataset had to be read. It
contains only data of the dataset, and can be deleted at any time.
"""

from __future__ import annotations

import codecs
import hashlib
import logging
import os
import time
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

import msgspec

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.data.jsonl import is_torn, read_whole, warn_of_torn_line
from flashinfer_bench.data.loader import Problems, data_files
from flashinfer_bench.data.run_source import Ends, Origin, RowMaker, RunRow, Task
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.data.trace import EvaluationStatus
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import DataError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data.trace import Trace

_logger = logging.getLogger(__name__)

SMALLEST = 1 << 18
"""Bytes that must have been read to update an index for it to be written."""

_SHARE = 16
"""An index is written only if at least one part in so many of the dataset had to be read."""

SETTLE_NS = 2_000_000_000
"""A file changed less than this before it was read may change again with the same time stamp.

Time stamps are as coarse as 2 s (FAT) and 1 s (older network file systems).
"""


class Part(msgspec.Struct, array_like=True):
    """The index of one file.

    Attributes
    ----------
    name : bytes
        The file, relative to the dataset, as the system encodes it.
    identity : tuple of int
        Size, modification and change times, and inode of the file before it was read. They change
        with the content: the change time (``ctime``) cannot be set, so a restored modification time
        does not hide a change. Empty if an equal identity would not prove an equal file.
    end, crc, lines : int
        End of the last line that was read, checksum of everything before, number of lines.
    torn : int
        Bytes after that, which are left out.
    grows : bool
        Whether the file is a sequence of finished lines. If not, it is read again at any change.
    bad : list of (int or None, str, str or None)
        Lines that are not traces: number (None in a file of one document), problem and field.
    workloads : list of (str, str)
        Definition and uuid of each workload trace.
    definitions : list of str
        Definitions that have runs in it, in order of appearance.
    packed : Raw
        The rows. In a file that is one JSON document, places are indices of records.
    """

    name: bytes
    identity: tuple[int, ...]
    end: int = 0
    crc: int = 0
    lines: int = 0
    torn: int = 0
    grows: bool = True
    bad: list[tuple[Optional[int], str, Optional[str]]] = []
    workloads: list[tuple[str, str]] = []
    definitions: list[str] = []
    packed: msgspec.Raw = msgspec.Raw()

    def holds(self, file: BinaryIO) -> bool:
        """Return whether a file still begins with the content that was read."""
        identity = _identity(file)
        if identity == self.identity:
            return True
        fits = identity[0] >= self.end if self.grows else identity[0] == self.end
        return fits and _checksum(file, self.end) == self.crc


def _identity(file: BinaryIO) -> tuple[int, ...]:
    info = os.fstat(file.fileno())
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the CRC-32 of the first `end` bytes of a file."""
    file.seek(0)
    crc = 0
    while end > 0 and (block := file.read(min(end, 1 << 20))):
        crc = zlib.crc32(block, crc)
        end -= len(block)
    return crc


# A row in the file: task and origin are indices into lists; the source is the file itself.
_Number = Optional[float]
_Row = tuple[
    int, int, EvaluationStatus, str, _Number, _Number, _Number, _Number, _Number,
    Optional[Ends], Optional[Ends], int, int, Optional[str], int, int,
]  # fmt: skip
_encode = msgspec.msgpack.Encoder().encode
_decode_rows: Callable[[msgspec.Raw], tuple[list[Any], list[Origin], list[Any]]]
_decode_rows = msgspec.msgpack.Decoder(
    tuple[list[tuple[str, str, str]], list[Origin], list[_Row]]
).decode
_decode_parts = msgspec.msgpack.Decoder(list[Part]).decode


def _pack(rows: Sequence[RunRow]) -> msgspec.Raw:
    tasks = {one: n for n, one in enumerate(dict.fromkeys(row.task for row in rows))}
    origins = {one: n for n, one in enumerate(dict.fromkeys(row.origin for row in rows))}
    fields = map(msgspec.structs.astuple, rows)
    packed = [(tasks[task], origins[origin], *rest) for _, task, origin, *rest in fields]
    # Axes are stored in the text only, because MessagePack has no integers of more than 64 bits.
    texts = [(task.definition, task.solution, task.text) for task in tasks]
    return msgspec.Raw(_encode((texts, list(origins), packed)))


class _Names(msgspec.Struct):
    uuid: str
    axes: dict[str, int]


_decode_names = msgspec.json.Decoder(_Names).decode


def _task(definition: str, solution: str, text: str) -> Task:
    names = _decode_names(text)
    return Task(definition, solution, names.uuid, names.axes, text)


class DataFile:
    """A data file with its part of the index.

    Parameters
    ----------
    path : Path
        The file.
    part : Part
        Its part of the index.
    traces : TraceReader
        Decodes its traces.

    Attributes
    ----------
    definitions : iterable of str
        The definitions of the runs in it.
    workloads : list of (str, str)
        Definition and uuid of each workload trace in it.
    """

    def __init__(self, path: Path, part: Part, traces: TraceReader) -> None:
        self.path, self.part, self._traces = path, part, traces
        self.definitions: Iterable[str] = part.definitions
        self.workloads = part.workloads

    @classmethod
    def open(cls, path: Path, name: bytes, known: Optional[Part], traces: TraceReader) -> DataFile:
        """Return a file with an up-to-date part, reading only what has changed."""
        now = time.time_ns()  # before the time stamps are read: later changes are unsettled
        with path.open("rb", buffering=1 << 18) as file:
            identity = _identity(file)
            if known is not None and known.identity == identity:
                return cls(path, known, traces)
            is_settled = now - max(identity[1:3]) > SETTLE_NS  # else a change may go unnoticed
            part = Part(name, identity if is_settled else ())
            if known is not None and known.holds(file):
                bad = list(known.bad)
                part = msgspec.structs.replace(known, identity=part.identity, torn=0, bad=bad)
                if part.end == identity[0]:
                    return cls(path, part, traces)
            whole = read_whole(file)
            if whole is not None:
                part = Part(name, part.identity)
            made = cls(path, part, traces)
            maker = RowMaker(made, made.rows)
            if whole is None:
                made._read_lines(file, maker)
            else:
                part.end, part.crc, part.grows = len(whole[0]), zlib.crc32(whole[0]), False
                for number, text in enumerate(whole[1]):
                    made._read(text, number, None, maker)
        part.workloads = [*part.workloads, *maker.workloads]
        part.definitions = list(dict.fromkeys(row.definition for row in maker.rows))
        part.packed = _pack(maker.rows)
        return cls(path, part, traces)  # rows are decoded on first use

    def _read_lines(self, file: BinaryIO, maker: RowMaker) -> None:
        """Read the lines after those in the index."""
        part = self.part
        end, crc, lines = part.end, part.crc, part.lines
        file.seek(end)
        for raw in file:
            is_finished = raw.endswith(b"\n")
            line = self._traces.read_line(raw)  # nearly all lines have the current format
            if line is not None:
                maker.add(line, end, len(raw))
            else:
                mark = len(codecs.BOM_UTF8) if not end and raw.startswith(codecs.BOM_UTF8) else 0
                if not is_finished and is_torn(raw[mark:]):
                    part.torn = len(raw)
                    break
                self._read(raw[mark:], end + mark, lines + 1, maker)
            end, crc, lines = end + len(raw), zlib.crc32(raw, crc), lines + is_finished
            part.grows = is_finished or raw.isspace()
        part.end, part.crc, part.lines = end, crc, lines

    def _read(self, raw: bytes, place: int, line: Optional[int], maker: RowMaker) -> None:
        """Read one line, which may be invalid, with the models."""
        text = raw.strip()
        if not text:
            return
        try:
            trace = self._traces.read(text, path=self.path, line=line)
        except DataError as error:
            self.part.bad.append((line, error.message, error.field))
        else:
            maker.add(trace, place, len(raw))

    @cached_property
    def rows(self) -> list[RunRow]:
        """The runs in it."""
        if not self.part.definitions:
            return []
        texts, origins, rows = _decode_rows(self.part.packed)
        tasks = [_task(*text) for text in texts]
        return [RunRow(self, tasks[row[0]], origins[row[1]], *row[2:]) for row in rows]

    def read(self, rows: Iterable[RunRow]) -> Iterator[Trace]:
        """Yield the traces of some rows.

        Raises
        ------
        DataError
            If the file has been rewritten in the meantime.
        """
        try:
            with self.path.open("rb") as file:
                if not self.part.holds(file):
                    raise DataError("the file has changed", path=self.path)
                whole = None if self.part.grows else read_whole(file)
                for row in rows:
                    if whole is not None:
                        text = whole[1][row.place]
                    else:
                        file.seek(row.place)
                        text = file.read(row.length).strip()
                    yield self._traces.read(text, path=self.path, line=None)
        except (OSError, IndexError) as error:
            raise DataError(f"the file has changed: {error}", path=self.path) from error


class MemoryTraces:
    """Traces of one definition in memory, with the interface of `DataFile`.

    Parameters
    ----------
    definition : str
        Its name.
    traces, workloads : sequence of Trace
        Traces of runs, and workload traces.
    """

    def __init__(
        self, definition: str, traces: Sequence[Trace], workloads: Sequence[Trace]
    ) -> None:
        self.definitions = [definition] if traces else []
        self.workloads = [(one.definition, one.workload.uuid) for one in workloads]
        self._traces = traces

    @cached_property
    def rows(self) -> list[RunRow]:
        """The runs."""
        maker = RowMaker(self)
        for place, trace in enumerate(self._traces):
            maker.add(trace, place)
        return maker.rows

    def read(self, rows: Iterable[RunRow]) -> Iterator[Trace]:
        """Yield the traces of some rows."""
        return (self._traces[row.place] for row in rows)


# ------------------------------------------------------------------- the file that keeps the parts

_FORMAT = ":".join(["7", __version__, *(one.value for one in EvaluationStatus)])
_MAGIC = b"fibindex" + hashlib.sha256(_FORMAT.encode()).digest()[:8]


def index_file(root: Path) -> Path:
    """Return the file that holds the index of a dataset."""
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return env.cache_path() / "index" / name / "traces.idx"


def _load(file: Path) -> dict[bytes, Part]:
    """Return the part of each data file; empty if there is no usable index."""
    try:
        data = memoryview(file.read_bytes())
        start = len(_MAGIC) + 4
        if data[:start] != _MAGIC + zlib.crc32(data[start:]).to_bytes(4, "little"):
            raise ValueError("damaged, or written by another release")
        return {part.name: part for part in _decode_parts(data[start:])}
    except FileNotFoundError:
        _logger.debug("no index %s yet", file)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        _logger.info("the index %s cannot be used and is rebuilt: %s", file, error)
    return {}


def _save(file: Path, parts: list[Part]) -> None:
    """Write an index; a failure is not an error, since the index only saves time."""
    data = _encode(parts)
    try:
        replace_file(file, _MAGIC + zlib.crc32(data).to_bytes(4, "little") + data)
    except StorageError as error:
        _logger.debug("the index %s cannot be written: %s", file, error)


# --------------------------------------------------------------------------------------- queries


class TraceIndex:
    """Queries on runs: of a dataset folder as it was when it was opened, or of traces in memory.

    Parameters
    ----------
    sources : sequence of DataFile or MemoryTraces
        The sources, in reading order.
    errors : list of DataError
        Files, folders and lines that cannot be read.
    torn_lines : list of DataError
        Unfinished last lines, which are left out.
    """

    def __init__(
        self,
        sources: Sequence[DataFile | MemoryTraces],
        errors: Sequence[DataError] = (),
        torn_lines: Sequence[DataError] = (),
    ) -> None:
        self._all, self.errors, self.torn_lines = sources, list(errors), list(torn_lines)
        self._sources: dict[str, list[DataFile | MemoryTraces]] = {}
        for source in sources:
            for name in source.definitions:
                self._sources.setdefault(name, []).append(source)

    @classmethod
    def of(
        cls, traces: Mapping[str, list[Trace]], workloads: Mapping[str, list[Trace]]
    ) -> TraceIndex:
        """Return an index of traces in memory, given by definition."""
        names = dict.fromkeys([*traces, *workloads])
        return cls(
            [MemoryTraces(one, traces.get(one, ()), workloads.get(one, ())) for one in names]
        )

    @classmethod
    def open(cls, root: Path) -> TraceIndex:
        """Return the updated index of a dataset; a failure to write it is not an error."""
        kept = index_file(root)
        known, traces, problems = _load(kept), TraceReader(), Problems("collect")
        files: list[DataFile] = []
        torn: list[DataError] = []
        work = size = 0
        for path in data_files(root, problems):
            with problems.guard(path):
                name = os.fsencode(path.relative_to(root))
                file = DataFile.open(path, name, known.get(name), traces)
                part = file.part
                files.append(file)
                size += part.end + part.torn
                work += part.end + part.torn if part is not known.get(name) else 0
                if part.torn:
                    warn_of_torn_line(path, part.torn)
                    problem = "left out an unfinished last line"
                    torn.append(DataError(problem, path=path, line=part.lines + 1))
        if work >= max(SMALLEST, size // _SHARE) and work:
            _save(kept, [file.part for file in files])
        bad = [
            DataError(message, path=file.path, line=line, field=field)
            for file in files
            for line, message, field in file.part.bad
        ]
        return cls(files, problems.errors + bad, torn)

    def names(self) -> list[str]:
        """Return the definitions that have runs, in order of appearance."""
        return list(self._sources)

    def rows(self, definition: Optional[str] = None) -> list[RunRow]:
        """Return the runs of a definition in order, or all of them by definition."""
        return [
            row
            for name in (self._sources if definition is None else (definition,))
            for source in self._sources.get(name, ())
            for row in source.rows
            if row.task.definition == name
        ]

    def passing(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> list[RunRow]:
        """Return the runs that passed within both tolerances, on workloads with exactly `axes`."""
        rows: Iterable[Any] = self.rows(definition)  # the errors of passed runs are not None
        return [
            row
            for row in rows
            if row.passed
            and (axes is None or row.axes == axes)
            and row.max_absolute_error <= atol
            and row.max_relative_error <= rtol
        ]

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace of a definition, in order."""
        pairs = (pair for source in self._all for pair in source.workloads)
        return [uuid for name, uuid in pairs if name == definition]

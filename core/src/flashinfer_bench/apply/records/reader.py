"""Reading whole trace files, or what was appended to them."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.apply.records.lean import Run, evaluation_of
from flashinfer_bench.apply.records.runs import FileRuns, Gatherer, Texts
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import is_torn
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from flashinfer_bench.data import Trace

_PIECE = 1 << 18  # bytes that are decoded at once
_OPENING, _CLOSING = b"{}"


class Reading(NamedTuple):
    """What was read of a file.

    Attributes
    ----------
    runs : FileRuns
        Its runs.
    may_grow : bool
        Whether these are the runs of its beginning, whatever is appended to it.
    """

    runs: FileRuns
    may_grow: bool


class RunReader:
    """Reads the runs of the trace files of one dataset.

    Attributes
    ----------
    problems : list of DataError
        What was left out because it cannot be read, in the order met.
    texts : Texts
        The workloads and environments that were met.
    """

    def __init__(self) -> None:
        self.problems: list[DataError] = []
        self.texts = Texts()
        self._decoder = msgspec.json.Decoder(Run)

    def read(
        self, data: bytes, path: Path, known: Optional[FileRuns] = None, start: int = 0
    ) -> Reading:
        """Read a file.

        Parameters
        ----------
        data : bytes
            The whole content of the file.
        path : Path
            Where it is from, for `problems`.
        known : FileRuns, optional
            The runs in the first `start` bytes, if a reading of these had `may_grow`. They are
            taken over and added to.
        start : int
            Where to begin.
        """
        gatherer = Gatherer(self.texts, known)
        of_lines = self._read_lines(data, path, start, gatherer)
        may_grow = of_lines and data.endswith(b"\n")
        return Reading(gatherer.outcome(), may_grow)

    def _read_lines(self, data: bytes, path: Path, start: int, gatherer: Gatherer) -> bool:
        """Read from some place on; return whether there are lines, and not one document."""
        # The last line may have been cut off in the middle of an append.
        unfinished = 0 if data.endswith(b"\n") else 1 + data.rstrip().count(b"\n")
        view, is_ascii = memoryview(data), data.isascii()
        done = data.count(b"\n", 0, start)  # lines
        has_begun = start > 0
        for begin, end in _pieces(data, start):
            count, is_regular = _lines(data, begin, end)
            piece = view[begin:end]
            if not is_regular or not self._read_piece(piece, count, gatherer, is_ascii=is_ascii):
                texts = bytes(piece).split(b"\n")
                if not has_begun and (whole := _document(texts, data)) is not None:
                    for text in whole:
                        self._read_any(text, path, None, gatherer)
                    return False
                for line, text in enumerate(texts, done + 1):
                    self._read_line(text, path, line, gatherer, is_unfinished=line == unfinished)
                has_begun = has_begun or any(map(bytes.strip, texts))
            else:
                has_begun = True
            done += count
        return has_begun

    def _read_piece(
        self, piece: memoryview, count: int, gatherer: Gatherer, *, is_ascii: bool
    ) -> bool:
        """Read `count` lines if all have today's format; return whether they have."""
        try:
            if not is_ascii:
                bytes(piece).decode()  # the decoder does not look into what it skips
            lines = self._decoder.decode_lines(piece)
            # It takes two records on one line.
            if len(lines) != count:
                return False
            gatherer.add(lines)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        return True

    def _read_line(
        self, text: bytes, path: Path, line: int, gatherer: Gatherer, *, is_unfinished: bool
    ) -> None:
        """Read a line; there may be a problem with it."""
        if not text or text.isspace():
            return
        try:
            if not text.isascii():
                text.decode()
            gatherer.add([self._decoder.decode(text)])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._read_any(text, path, line, gatherer, is_unfinished=is_unfinished)

    def _read_any(
        self,
        text: bytes,
        path: Path,
        line: Optional[int],
        gatherer: Gatherer,
        *,
        is_unfinished: bool = False,
    ) -> None:
        """Read a record in any format; there may be a problem with it."""
        from flashinfer_bench.data.trace import Trace

        try:
            if is_unfinished and is_torn(text):
                raise DataError("left out an unfinished last line", path=path, line=line)
            run = self.of_trace(decode(Trace, text.strip(), path=path, line=line))
        except DataError as error:  # one bad line; the next may be fine
            self.problems.append(error)
            return
        if run is not None:
            gatherer.add([run])

    def of_trace(self, trace: Trace) -> Optional[Run]:
        """Return the run that a trace tells of, None for a workload alone."""
        if trace.solution is None or trace.evaluation is None:
            return None
        workload, environment = self.texts.add(trace.workload, trace.evaluation.environment)
        evaluation = evaluation_of(trace.evaluation, msgspec.Raw(environment))
        return Run(trace.definition, msgspec.Raw(workload), trace.solution, evaluation)

    def of_traces(self, traces: Iterable[Trace]) -> FileRuns:
        """Return the runs that traces tell of."""
        gatherer = Gatherer(self.texts)
        gatherer.add([run for run in map(self.of_trace, traces) if run is not None])
        return gatherer.outcome()


# ------------------------------------------------------------------------- broken and odd files


def _pieces(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield where to read: many lines at a time, but never all: what is made of them is large."""
    while start < len(data):
        end = data.find(b"\n", start + _PIECE) + 1 or len(data)
        yield start, end
        start = end


def _lines(data: bytes, begin: int, end: int) -> tuple[int, bool]:
    """Return the number of newlines, and whether each line begins with { and ends with }.

    If so, no record goes on over the end of a line: a } there would need something else than a {
    behind it. On long lines this is quicker than `bytes.count`.
    """
    count, find = 0, data.find
    is_regular = data[begin] == _OPENING
    while begin := find(b"\n", begin, end) + 1:
        count += 1
        if data[begin - 2] != _CLOSING or (begin < end and data[begin] != _OPENING):
            is_regular = False
    return count, is_regular


def _document(texts: list[bytes], data: bytes) -> Optional[list[bytes]]:
    """Return the records of a file that is one JSON document, None if it is one of lines."""
    first = next((text for text in texts if text.strip()), None)
    return None if first is None or _is_object(first) else _whole(data)


def _is_object(text: bytes) -> bool:
    text = text.removeprefix(codecs.BOM_UTF8)
    return text.lstrip().startswith(b"{") and _parsed(text) is not None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _whole(data: bytes) -> Optional[list[bytes]]:
    """Return the records of a file that is one JSON document, None if it is not one."""
    document = _parsed(data.removeprefix(codecs.BOM_UTF8))
    if document is None:
        return None
    records = document if isinstance(document, list) else [document]
    return [json.dumps(record).encode() for record in records]

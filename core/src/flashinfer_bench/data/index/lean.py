"""Reading of a line only what the index keeps, as strictly as the models would read it.

A line that is read here, the models would read too, and with the same values; every other line
(old spellings, further keys, unusual numbers, broken ones) is left to them. Nothing is skipped:
each byte of a line is either decoded here into a type at least as narrow as the model's, or part
of a text that the model has accepted before.
"""

from __future__ import annotations

import math
import sys
from array import array
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import msgspec
from pydantic import PlainSerializer, ValidationError

from flashinfer_bench.data.index.columns import NO_RUN, PASSED, STATUSES, TYPES, Columns, Head
from flashinfer_bench.data.run_source import RunDetails
from flashinfer_bench.data.samples import from_json as samples_from_json
from flashinfer_bench.data.samples import unpacked
from flashinfer_bench.data.trace import Provenance
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data.trace import Correctness, Performance
    from flashinfer_bench.data.trace_reader import TraceReader

_Duration = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Error = Union[_Duration, Literal["NaN", "Infinity"]]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_CODES: dict[str, int] = {status.value: code for code, status in enumerate(STATUSES)}
_GIVEN = {"PASSED": (True, True), "INCORRECT_NUMERICAL": (True, False)}
"""Whether correctness and performance are given with a status."""

_NULL = msgspec.Raw(b"null")
_KEY = b'"solution"'
_BRACE = ord("{")
_NO_WORKLOAD = Workload(axes={}, inputs={}, uuid="none")
_DEEPEST = 100  # the models' parser gives up at 200 levels, this one does not


class _Correctness(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    max_relative_error: _Error
    max_absolute_error: _Error
    extra: Optional[dict[str, Any]] = None


class _Performance(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    latency_ms: _Duration
    reference_latency_ms: _Duration
    speedup_factor: _Duration
    samples_ms: Union[list[_Duration], str, None] = None
    interval_ms: Optional[tuple[_Duration, _Duration]] = None
    reference_samples_ms: Union[list[_Duration], str, None] = None
    speedup_interval: Optional[tuple[_Duration, _Duration]] = None
    outliers: Optional[_Count] = None
    dropped: Optional[list[tuple[_Count, _Count]]] = None


class _Environment(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    hardware: _Text
    libs: Optional[dict[str, str]] = None


class _Evaluation(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    status: str
    environment: msgspec.Raw
    timestamp: _Text
    log: str = ""
    correctness: Optional[_Correctness] = None
    performance: Optional[_Performance] = None
    provenance: msgspec.Raw = _NULL


class _Start(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    definition: _Text
    workload: msgspec.Raw
    solution: None


class _Run(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    definition: str
    workload: msgspec.Raw
    solution: str
    evaluation: _Evaluation


class _Rest(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    solution: _Text
    evaluation: _Evaluation


_PLAIN = (int, str, float, bool, dict[str, Any])
_PLAIN_TYPES = (*_PLAIN, *(Optional[one] for one in _PLAIN))


def _lean_provenance() -> Optional[msgspec.json.Decoder[Any]]:
    """Return a decoder at least as narrow as `Provenance`; None where that has rules of its own."""
    fields = Provenance.model_fields
    rules = Provenance.__pydantic_decorators__
    plain = all(
        field.annotation in _PLAIN_TYPES
        and all(isinstance(one, PlainSerializer) for one in field.metadata)
        for field in fields.values()
    )
    if not plain or rules.field_validators or rules.model_validators or rules.validators:
        return None
    members = [(name, field.annotation, None) for name, field in fields.items()]
    made = msgspec.defstruct("_Provenance", members, forbid_unknown_fields=True)
    return msgspec.json.Decoder(made)


_decode_start = msgspec.json.Decoder(_Start).decode
_decode_rest = msgspec.json.Decoder(_Rest).decode
_decode_environment = msgspec.json.Decoder(_Environment).decode
_decode_run = msgspec.json.Decoder(_Run).decode
_lean = _lean_provenance()
_NAN = math.nan
_NO_ERRORS = (_NAN, _NAN)
_NO_TIMES = (_NAN, _NAN, _NAN)


class _UnusualLineError(ValueError):
    """A line is for the models to read."""


_UNUSUAL = (msgspec.MsgspecError, ValidationError, ValueError, RecursionError)


def _is_shallow(part: bytes | memoryview) -> bool:
    text = bytes(part)
    return text.count(b"[") + text.count(b"{") <= _DEEPEST


def read_details(text: bytes, head: Head) -> Optional[RunDetails]:
    """Read log and samples of a line that was read before.

    Parameters
    ----------
    text : bytes
        The line.
    head : Head
        Whose run it is.

    Returns
    -------
    RunDetails or None
        None if the line is for the models to read, or not the run that was expected.
    """
    try:
        run = _decode_run(text)
    except _UNUSUAL:
        return None
    if (run.definition, run.solution) != head[:2]:
        return None
    one = run.evaluation
    samples = one.performance.samples_ms if one.performance is not None else None
    return RunDetails(one.log, tuple(samples_from_json(samples) or ()))


def _check_provenance(text: bytes) -> None:
    if _lean is not None and _is_shallow(text):
        try:
            _lean.decode(text)
        except _UNUSUAL:
            pass  # the model takes more: further keys, numbers as text
        else:
            return
    if text != b"null":
        Provenance.__pydantic_validator__.validate_json(text)


class _Lines:
    """Rows on their way into columns; packed now and then, because tuples take much memory."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.hardware: dict[str, int] = {}
        self.rows: list[tuple[float, ...]] = []
        self.timestamps: list[str] = []
        self._arrays = [array(code) for code in TYPES]

    def flush(self) -> None:
        """Pack the rows."""
        for column, field in zip(self._arrays, zip(*self.rows, strict=True), strict=False):
            column += array(column.typecode, field)  # quicker than to extend by a tuple
        self.rows.clear()

    def columns(self) -> Columns:
        """Return all rows as columns."""
        self.flush()
        stamps = msgspec.msgpack.encode(self.timestamps)
        return Columns(self.heads, list(self.hardware), self._arrays, stamps)


class LineReader:
    """Makes columns of the lines of one file.

    Parameters
    ----------
    reader : TraceReader
        The ordinary way, for what is not read here; it may be shared by many files.
    path : Path
        The file, for messages.

    Attributes
    ----------
    last_line : int
        Number of the last line that `read_block` came to.
    """

    def __init__(self, reader: TraceReader, path: Path) -> None:
        self.last_line = 0
        self._reader = reader
        self._path = path
        self._lines = _Lines()
        self._start = b"\n"  # no line begins with that
        self._definition, self._workload = "", _NO_WORKLOAD
        self._heads: dict[str, int] = {}
        self._environments: dict[bytes, int] = {}
        self._by_start: dict[bytes, tuple[str, Workload, dict[str, int]]] = {}
        self._by_workload: dict[tuple[str, Optional[str], int], int] = {}

    def columns(self) -> Columns:
        """Return what was read."""
        return self._lines.columns()

    def read_block(
        self, block: bytearray, start: int, end: int, base: int, line: int
    ) -> Iterator[tuple[int, int, int]]:
        """Read whole lines.

        Parameters
        ----------
        block : bytearray
            Part of the file.
        start, end : int
            The lines in it; each ends with a newline.
        base : int
            Where the block begins in the file.
        line : int
            Number of the first of the lines.

        Yields
        ------
        start, end, line : int
            The lines that are not for this reader, by their place in the block: blank, broken, or
            to be read by `read`. It has to be called before the next line is asked for.
        """
        find, view, begins = block.find, memoryview(block), block.startswith
        rows, stamps, row = self._lines.rows, self._lines.timestamps, self._row
        for number in count(line):
            if start >= end:
                break
            stop, at = find(b"\n", start), -1
            try:
                if not begins(self._start, start):
                    self._turn_to(block, start, stop)
                at = start + len(self._start) - 1
                spared, block[at] = block[at], _BRACE
                rest = _decode_rest(view[at:stop])
                head = self._heads.get(rest.solution)
                if head is None:
                    head = self._learn(rest.solution)
                rows.append(row(head, rest.evaluation, base + start, stop - start))
                stamps.append(rest.evaluation.timestamp)
            except _UNUSUAL:
                if at >= 0:
                    block[at] = spared
                yield start, stop, number
            start = stop + 1
        view.release()
        self.last_line = number - 1
        self._lines.flush()

    def _turn_to(self, block: bytearray, start: int, stop: int) -> None:
        """Look at what comes before the solution: definition and workload, as of many lines."""
        at = block.find(_KEY, start, stop)
        text = bytes(block[start : max(at, start)])
        known = self._by_start.get(text)
        if known is None:
            # If this is an object once a solution and a brace are put behind it, it was a whole
            # number of the object's fields.
            found = _decode_start(text + _KEY + b":null}")
            workload = self._reader.read_workload(found.definition, bytes(found.workload))
            known = self._by_start[text] = (found.definition, workload, {})
        self._start = text
        self._definition, self._workload, self._heads = known

    def _learn(self, solution: str) -> int:
        head = self._head(self._definition, solution, self._workload)
        self._heads[solution] = head
        return head

    def _row(self, head: int, one: _Evaluation, offset: int, length: int) -> tuple[float, ...]:
        errors, times = one.correctness, one.performance
        environment = bytes(one.environment)
        hardware = self._environments.get(environment)
        if hardware is None:
            hardware = self._place(_decode_environment(environment).hardware)
            self._environments[environment] = hardware
        if one.provenance is not _NULL:
            _check_provenance(bytes(one.provenance))
        if errors is None or times is None or one.status != "PASSED" or errors.extra:
            place = (offset, length, _sample_count(times))
            return (head, hardware, *_other_numbers(one), *place)
        absolute, relative = errors.max_absolute_error, errors.max_relative_error
        if isinstance(absolute, str) or isinstance(relative, str):
            absolute, relative = _errors(errors)
        return (  # one tuple, because this is done for each line
            head,
            hardware,
            PASSED,
            times.latency_ms,
            times.reference_latency_ms,
            times.speedup_factor,
            absolute,
            relative,
            offset,
            length,
            _sample_count(times),
        )

    def read(self, text: bytes, offset: int, line: Optional[int]) -> None:
        """Read one line in the ordinary way.

        Parameters
        ----------
        text : bytes
            The line.
        offset : int
            Where it begins in the file.
        line : int or None
            Its number, for messages.

        Raises
        ------
        DataError
            If it is not a trace.
        """
        trace = self._reader.read(text.strip(), path=self._path, line=line)
        workload, one = trace.workload, trace.evaluation
        head = self._head(trace.definition, trace.solution, workload)
        if one is None:
            row, samples = (head, NO_RUN, NO_RUN, *_NO_TIMES, *_NO_ERRORS), 0
        else:
            hardware = self._place(one.environment.hardware)
            numbers = (*_times(one.performance), *_errors(one.correctness))
            row = (head, hardware, _CODES[one.status.value], *numbers)
            samples = _sample_count(one.performance)
        self._lines.rows.append((*row, offset, len(text), samples))
        self._lines.timestamps.append("" if one is None else one.timestamp)

    def _head(self, definition: str, solution: Optional[str], workload: Workload) -> int:
        # The head keeps the axes alive, so that no other ones get their id.
        key = (definition, solution, id(workload.axes))
        place = self._by_workload.setdefault(key, len(self._lines.heads))
        if place == len(self._lines.heads):
            self._lines.heads.append(Head(definition, solution, workload.uuid, workload.axes))
        return place

    def _place(self, hardware: str) -> int:
        return self._lines.hardware.setdefault(hardware, len(self._lines.hardware))


def _other_numbers(one: _Evaluation) -> tuple[float, ...]:
    """Return the status and the numbers that go with it."""
    errors, times = one.correctness, one.performance
    given = (errors is not None, times is not None)
    if one.status not in _CODES or given != _GIVEN.get(one.status, (False, False)):
        raise _UnusualLineError
    if errors is not None and errors.extra and not _is_shallow(msgspec.json.encode(errors.extra)):
        raise _UnusualLineError
    return (_CODES[one.status], *_times(times), *_errors(errors))


def _errors(errors: _Correctness | Correctness | None) -> tuple[float, float]:
    if errors is None:
        return _NO_ERRORS
    return float(errors.max_absolute_error), float(errors.max_relative_error)


def _times(times: _Performance | Performance | None) -> tuple[float, float, float]:
    if times is None:
        return _NO_TIMES
    return times.latency_ms, times.reference_latency_ms, times.speedup_factor


def _sample_count(times: _Performance | Performance | None) -> int:
    """Return how many samples there are, and look at all that the models would look at."""
    if times is None:
        return 0
    for ends in (times.interval_ms, times.speedup_interval):
        if ends is not None and ends[0] > ends[1]:
            raise _UnusualLineError
    if isinstance(times.reference_samples_ms, str):
        unpacked(times.reference_samples_ms)
    samples = times.samples_ms
    if samples is None:
        return 0
    return len(unpacked(samples) if isinstance(samples, str) else samples)

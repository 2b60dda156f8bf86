"""From decoded lines to columns: many at once, because each step for one line costs a second.

A batch is a stretch of lines of one block. Either all of it goes into the columns, or nothing: a
line that turns out to be for the models is then looked for one by one.
"""

from __future__ import annotations

import math
from array import array
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.data.index.columns import (
    STATUSES,
    TYPES,
    Columns,
    Head,
)
from flashinfer_bench.data.index.lean_types import (
    NULL,
    LeanCorrectness,
    LeanPerformance,
    UnusualLineError,
    decode_environment,
    is_shallow,
    read_provenance,
)
from flashinfer_bench.data.run_source import Clock, count_dropped
from flashinfer_bench.data.samples import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashinfer_bench.data.index.lean_types import LeanEvaluation, LeanRest
    from flashinfer_bench.data.trace import Performance
    from flashinfer_bench.data.workload import Workload

CODES: dict[str, int] = {status.value: code for code, status in enumerate(STATUSES)}

_GIVEN = {"PASSED": (True, True), "INCORRECT_NUMERICAL": (True, False)}
"""Whether correctness and performance are given with a status; neither is with those left out."""

_PASSED = ("PASSED", LeanCorrectness, LeanPerformance)
_NOTHING = type(None)
_FORMS = {
    (status, LeanCorrectness if errors else _NOTHING, LeanPerformance if times else _NOTHING)
    for status in CODES
    for errors, times in [_GIVEN.get(status, (False, False))]
}
_NAN = math.nan
_NO_ERRORS = LeanCorrectness(_NAN, _NAN)
_NO_TIMES = LeanPerformance(_NAN, _NAN, _NAN)
_NO_ENDS = (_NAN, _NAN)
_NO_CLOCK = Clock()


class Turn(NamedTuple):
    """What lines have in common that begin with the same text.

    `heads` has the place of the head for each solution that was met.
    """

    text: bytes
    definition: str
    workload: Workload
    heads: dict[str, int]


class Batch:
    """Lines that are decoded, and not in columns yet.

    Attributes
    ----------
    line : int
        Number of the first.
    starts, stops : list of int
        Where they are in the block.
    rests : list of LeanRest
        What they say from the solution on.
    turns : list of (int, Turn)
        What they say before it: from that line of the batch on, the first has the number 0.
    """

    __slots__ = ("line", "rests", "starts", "stops", "turns")

    def __init__(self, line: int, turn: Turn) -> None:
        self.line = line
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.rests: list[LeanRest] = []
        self.turns = [(0, turn)]

    def stretches(self) -> Iterator[tuple[Turn, list[LeanRest]]]:
        """Yield the lines, stretch by stretch with the same beginning."""
        ends = [*(begin for begin, _ in self.turns[1:]), len(self.rests)]
        for (begin, turn), end in zip(self.turns, ends, strict=True):
            yield turn, self.rests[begin:end]

    def lines(self) -> Iterator[Batch]:
        """Yield the lines, each as a batch."""
        number = 0
        for turn, rests in self.stretches():
            for rest in rests:
                one = Batch(self.line + number, turn)
                one.starts, one.stops = [self.starts[number]], [self.stops[number]]
                one.rests = [rest]
                number += 1
                yield one


class Lines:
    """The lines of one file on their way into columns."""

    def __init__(self) -> None:
        self.clocks: dict[Clock, int] = {}
        self._heads: list[Head] = []
        self._hardware: dict[str, int] = {}
        self._timestamps: list[str] = []
        self._arrays: list[array[Any]] = [array(code) for code in TYPES]
        self._environments: dict[bytes, int] = {}
        self._by_workload: dict[tuple[str, Optional[str], int], int] = {}

    def columns(self) -> Columns:
        """Return all lines as columns."""
        stamps = msgspec.msgpack.encode(self._timestamps)
        return Columns(self._heads, list(self._hardware), self._arrays, stamps, list(self.clocks))

    def head(self, definition: str, solution: Optional[str], workload: Workload) -> int:
        """Return the place of a head."""
        # The head keeps the axes alive, so that no other ones get their id.
        key = (definition, solution, id(workload.axes))
        place = self._by_workload.setdefault(key, len(self._heads))
        if place == len(self._heads):
            self._heads.append(Head(definition, solution, workload.uuid, workload.axes))
        return place

    def hardware(self, name: str) -> int:
        """Return the place of a device."""
        return self._hardware.setdefault(name, len(self._hardware))

    def clock(self, origin: Any) -> int:
        """Return the place of the clock of a provenance: the model, or what was read leanly."""
        clock = _NO_CLOCK
        if origin is not None:
            clock = Clock.of(origin.timer, origin.stop_rule, origin.timing)
        return self.clocks.setdefault(clock, len(self.clocks))

    def add_row(self, row: Sequence[float], timestamp: str) -> None:
        """Add one line, with a number for each column."""
        for column, field in zip(self._arrays, row, strict=True):
            column.append(field)
        self._timestamps.append(timestamp)

    def add(self, batch: Batch, base: int) -> None:
        """Add lines; `base` is where their block begins in the file.

        Raises
        ------
        Exception
            One of `UNUSUAL`, if one of the lines is for the models; nothing is added.
        """
        evaluations = [one.evaluation for one in batch.rests]
        columns = [
            self._heads_of(batch),
            self._devices_of(evaluations),
            *_numbers_of(evaluations),
            [base + start for start in batch.starts],
            list(map(sub, batch.stops, batch.starts)),
            *self._samples_of(evaluations),
        ]
        stamps = [one.timestamp for one in evaluations]
        packed = [
            field if isinstance(field, array) else array(code, field)
            for code, field in zip(TYPES, columns, strict=True)
        ]
        for column, more in zip(self._arrays, packed, strict=True):
            column += more  # quicker than to extend by a list
        self._timestamps += stamps

    def _heads_of(self, batch: Batch) -> list[int]:
        found = []
        for turn, rests in batch.stretches():
            known = turn.heads
            for rest in rests:
                place = known.get(rest.solution)
                if place is None:
                    place = self.head(turn.definition, rest.solution, turn.workload)
                    known[rest.solution] = place
                found.append(place)
        return found

    def _devices_of(self, evaluations: list[LeanEvaluation]) -> list[int]:
        texts = [bytes(one.environment) for one in evaluations]
        known = self._environments
        for text in texts:
            if text not in known:
                known[text] = self.hardware(decode_environment(text).hardware)
        return [known[text] for text in texts]

    def _samples_of(self, evaluations: list[LeanEvaluation]) -> list[Sequence[float]]:
        """Return the columns from the number of samples on."""
        times = [one.performance for one in evaluations if one.performance is not None]
        clocks = self._clocks_of([one.provenance for one in evaluations])
        told = [
            one
            for one in times
            if one.samples_ms is not None
            or one.interval_ms is not None
            or one.reference_samples_ms is not None
            or one.speedup_interval is not None
        ]
        if told:
            both = zip([one.performance for one in evaluations], clocks, strict=True)
            return list(zip(*(samples_of(*pair) for pair in both), strict=True))
        count = len(clocks)
        zeros, nans = array("i", [0]) * count, array("d", [_NAN]) * count
        return [zeros, clocks, nans, nans, nans, nans, zeros]

    def _clocks_of(self, origins: list[msgspec.Raw]) -> Sequence[int]:
        if not [one for one in origins if one is not NULL]:
            return array("i", [self.clock(None)]) * len(origins)
        return [self.clock(None if one is NULL else read_provenance(bytes(one))) for one in origins]


def _numbers_of(evaluations: list[LeanEvaluation]) -> list[Sequence[float]]:
    """Return the columns from the status to the errors."""
    statuses = [one.status for one in evaluations]
    all_errors = [one.correctness for one in evaluations]
    all_times = [one.performance for one in evaluations]
    forms = set(zip(statuses, map(type, all_errors), map(type, all_times), strict=True))
    if not forms <= _FORMS:
        raise UnusualLineError
    errors = [one or _NO_ERRORS for one in all_errors]
    times = [one or _NO_TIMES for one in all_times]
    for extra in [one.extra for one in errors if one.extra]:
        if not is_shallow(msgspec.json.encode(extra)):
            raise UnusualLineError
    return [
        [CODES[status] for status in statuses],
        [one.latency_ms for one in times],
        [one.reference_latency_ms for one in times],
        [one.speedup_factor for one in times],
        _floats([one.max_absolute_error for one in errors]),
        _floats([one.max_relative_error for one in errors]),
    ]


def _floats(values: list[Any]) -> Sequence[float]:
    """Return numbers some of which may be words: NaN, Infinity."""
    try:
        return array("d", values)
    except TypeError:
        return [float(value) for value in values]


def samples_of(times: LeanPerformance | Performance | None, clock: int) -> tuple[float, ...]:
    """Return the last columns of a line, and look at all that the models would look at.

    Parameters
    ----------
    times : LeanPerformance or Performance, optional
        Performance of the run.
    clock : int
        Place of its clock.

    Raises
    ------
    ValueError
        If the models would refuse the samples or an interval.
    """
    if times is None:
        return 0, clock, *_NO_ENDS, *_NO_ENDS, 0
    interval, speedup = times.interval_ms, times.speedup_interval
    for ends in (interval, speedup):
        if ends is not None and ends[0] > ends[1]:
            raise UnusualLineError
    if isinstance(times.reference_samples_ms, str):
        unpacked(times.reference_samples_ms)
    samples = times.samples_ms or ()
    count = len(unpacked(samples) if isinstance(samples, str) else samples)
    dropped = count_dropped(times.dropped, count) if times.dropped else 0
    return count, clock, *(interval or _NO_ENDS), *(speedup or _NO_ENDS), dropped

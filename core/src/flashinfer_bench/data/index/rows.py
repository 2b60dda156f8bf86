"""One row for each line of a data file: all that questions to a dataset need, but logs and samples.

Rows are kept column by column, in arrays of the standard library: as compact as those of numpy,
and quick enough because a question is about few of them.
"""

from __future__ import annotations

import json
import math
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.data.samples import dropped_numbers
from flashinfer_bench.data.trace import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.trace import Trace

    Column = array[Any]
else:
    Column = array  # takes no parameter before Python 3.12

STATUSES = tuple(EvaluationStatus)
NO_RUN = -1
"""Status and origin of a workload trace."""

CODES = {"": NO_RUN, **{status.value: code for code, status in enumerate(STATUSES)}}
PASSED = CODES["PASSED"]

_COMPARED = tuple(one.value in ("PASSED", "INCORRECT_NUMERICAL") for one in STATUSES)
_NAN = math.nan


class Head(NamedTuple):
    """What many rows have in common: a solution (None for a workload trace) on a workload.

    `workload` is a place in the list of `Rows`.
    """

    definition: str
    solution: Optional[str]
    workload: int


class Origin(NamedTuple):
    """Where runs were made, and how they were timed and judged.

    `is_judged` is whether they name their evaluator, `solution_hash` the content of the solution
    that was run, if it is recorded.
    """

    hardware: str
    libs: tuple[tuple[str, str], ...]
    clock: Clock = Clock()
    is_judged: bool = False
    solution_hash: Optional[str] = None

    @classmethod
    def of(cls, environment: Any, provenance: Any) -> Origin:
        """Return the origin of a run: from the models, or from what was decoded of it."""
        where = environment.hardware, tuple(environment.libs.items())
        if provenance is None:
            return cls(*where)
        known = provenance.extra.get("solution_hash")
        clock = Clock.of(provenance.timer, provenance.stop_rule, provenance.timing)
        content = known if isinstance(known, str) else None
        return cls(*where, clock, bool(provenance.evaluator), content)


class Columns(NamedTuple):
    """A field of all rows each. Numbers that a row lacks are NaN; times are in milliseconds.

    `head` and `origin` are places in the lists of `Rows`; `offset` and `length` are where the line
    is in its file; `samples` is how many there are, `dropped` how many do not count.
    """

    head: Column
    origin: Column
    status: Column
    latency_ms: Column
    reference_ms: Column
    speedup: Column
    absolute: Column
    relative: Column
    offset: Column
    length: Column
    samples: Column
    low_ms: Column
    high_ms: Column
    speedup_low: Column
    speedup_high: Column
    dropped: Column


TYPES = "iibdddddqqiddddi"
"""Type codes of the columns, as of `array`."""


class _Names(msgspec.Struct):
    uuid: str
    axes: dict[str, int]


_decode_names = msgspec.json.Decoder(_Names).decode


def _no_columns() -> Columns:
    return Columns(*(array(code) for code in TYPES))


class Rows(msgspec.Struct, array_like=True, dict=True):
    """The rows of one file, in the order of its lines.

    Attributes
    ----------
    heads : list of Head
        What the column `head` points to.
    workloads : list of bytes
        Their JSON; heads point to it.
    origins : list of Origin
        What the column `origin` points to.
    columns : Columns
        The numbers.
    timestamps : list of str
        The time stamp of each row, empty for workload traces.
    notes : dict of int to str
        What evaluators have noted of some rows, by their numbers: JSON, see `note_of`.
    """

    heads: list[Head] = []
    workloads: list[bytes] = []
    origins: list[Origin] = []
    columns: Columns = msgspec.field(default_factory=_no_columns)
    timestamps: list[str] = []
    notes: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.columns.head)

    def workload_names(self) -> list[_Names]:
        """Return uuid and axes of each workload."""
        return [_decode_names(text) for text in self.workloads]

    def runs_of(self, definition: str) -> list[int]:
        """Return the numbers of the rows that are runs of a definition."""
        return self._rows_with(
            one.definition == definition and one.solution is not None for one in self.heads
        )

    def passing(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> list[int]:
        """Return the numbers of the runs that passed within both tolerances, in their order."""
        names, columns = self.workload_names(), self.columns
        chosen = self._rows_with(
            one.definition == definition
            and one.solution is not None
            and (axes is None or names[one.workload].axes == axes)
            for one in self.heads
        )
        status, absolute, relative = columns.status, columns.absolute, columns.relative
        return [
            number
            for number in chosen
            if status[number] == PASSED and absolute[number] <= atol and relative[number] <= rtol
        ]

    def _rows_with(self, wanted: Iterable[bool]) -> list[int]:
        chosen = list(wanted)
        return [number for number, head in enumerate(self.columns.head) if chosen[head]]

    def groups(self) -> Iterator[tuple[Head, Origin, list[int]]]:
        """Yield all runs by head and origin, each time with the numbers of the rows."""
        found: dict[tuple[int, int], list[int]] = {}
        for number, key in enumerate(zip(self.columns.head, self.columns.origin, strict=True)):
            found.setdefault(key, []).append(number)
        for (head, origin), numbers in found.items():
            if origin != NO_RUN:
                yield self.heads[head], self.origins[origin], numbers

    def fields(self, numbers: Sequence[int]) -> list[Sequence[Any]]:
        """Return a sequence for each field of `RunRow`, and one with the numbers of samples."""

        def pick(column: Sequence[Any]) -> Sequence[Any]:
            return column if everything else [column[number] for number in numbers]

        def given(column: Sequence[float]) -> list[Optional[float]]:
            return [one if one == one else None for one in pick(column)]  # NaN: there is none

        def compared(column: Sequence[float]) -> list[Optional[float]]:
            pairs = zip(pick(column), codes, strict=True)
            return [one if _COMPARED[code] else None for one, code in pairs]

        def ends(lows: Sequence[float], highs: Sequence[float]) -> list[Any]:
            pairs = zip(pick(lows), pick(highs), strict=True)
            return [pair if pair[0] == pair[0] else None for pair in pairs]

        columns, names = self.columns, self.workload_names()
        everything = len(numbers) == len(self)
        codes = pick(columns.status)
        heads = [self.heads[place] for place in pick(columns.head)]
        origins = [self.origins[place] for place in pick(columns.origin)]
        return [
            [head.definition for head in heads],
            [head.solution for head in heads],
            [names[head.workload].uuid for head in heads],
            [names[head.workload].axes for head in heads],
            [origin.hardware for origin in origins],
            [STATUSES[code] for code in codes],
            pick(self.timestamps),
            given(columns.latency_ms),
            given(columns.reference_ms),
            given(columns.speedup),
            compared(columns.absolute),
            compared(columns.relative),
            ends(columns.low_ms, columns.high_ms),
            ends(columns.speedup_low, columns.speedup_high),
            pick(columns.dropped),
            [origin.clock for origin in origins],
            pick(columns.samples),
        ]


def note_of(extra: Optional[dict[str, Any]]) -> Optional[str]:
    """Return what an evaluator has noted of a run that says whether it may be relied on.

    Parameters
    ----------
    extra : dict, optional
        ``correctness.extra``.

    Returns
    -------
    str or None
        JSON: the share of elements that match, null if that is not given as it should be, and
        ``integrity``. None if there is neither.
    """
    ratio, integrity = (extra or {}).get("matched_ratio"), (extra or {}).get("integrity")
    if isinstance(ratio, bool) or not (isinstance(ratio, (int, float)) and 0 <= ratio <= 1):
        ratio = None
    return None if ratio is integrity is None else json.dumps([ratio, integrity])


_NO_ENDS = (_NAN, _NAN)
_NO_ERRORS = SimpleNamespace(max_absolute_error=_NAN, max_relative_error=_NAN, extra=None)
_NO_TIMES = SimpleNamespace(
    latency_ms=_NAN,
    reference_latency_ms=_NAN,
    speedup_factor=_NAN,
    samples_ms=None,
    interval_ms=None,
    speedup_interval=None,
    dropped=None,
)
_NO_EVALUATION = SimpleNamespace(status="", timestamp="", correctness=None, performance=None)
_AT_ONCE = 1 << 7


class RowWriter:
    """Adds to rows; what many have in common is kept once."""

    def __init__(self, rows: Optional[Rows] = None) -> None:
        self._rows = Rows() if rows is None else rows
        self._origins = {origin: place for place, origin in enumerate(self._rows.origins)}
        self._workloads = {text: place for place, text in enumerate(self._rows.workloads)}
        self._heads = {
            (one.definition, one.solution, self._rows.workloads[one.workload]): place
            for place, one in enumerate(self._rows.heads)
        }
        self._places: dict[int, tuple[Any, int]] = {}
        self._new: list[tuple[Any, bytes, int, int]] = []

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> Rows:
        """Return the rows of traces that are in memory."""
        writer, texts = cls(), dict[int, bytes]()
        for trace in traces:
            workload = trace.workload
            if id(workload) not in texts:
                texts[id(workload)] = workload.model_dump_json().encode()
            writer.add(trace, texts[id(workload)])
        return writer.finish()

    def add(self, trace: Any, workload: bytes, offset: int = 0, length: int = 0) -> None:
        """Add a trace, or what was decoded of its line, with the JSON of its workload."""
        self._new.append((trace, workload, offset, length))
        if len(self._new) >= _AT_ONCE:
            self.finish()

    def finish(self) -> Rows:
        """Return all rows."""
        if not self._new:
            return self._rows
        # One list for each column is several times quicker than one tuple for each row.
        traces, workloads, offsets, lengths = zip(*self._new, strict=True)
        self._new = []
        rows, begin = self._rows, len(self._rows)
        runs = [one.evaluation or _NO_EVALUATION for one in traces]
        errors = [one.correctness or _NO_ERRORS for one in runs]
        times = [one.performance or _NO_TIMES for one in runs]
        counts = [len(one.samples_ms or ()) for one in times]
        ends = [one.interval_ms or _NO_ENDS for one in times]
        speedups = [one.speedup_interval or _NO_ENDS for one in times]
        more: dict[str, Sequence[float]] = {
            "head": list(map(self._head, traces, workloads)),
            "origin": list(map(self._origin, runs)),
            "status": [CODES[one.status] for one in runs],
            "latency_ms": [one.latency_ms for one in times],
            "reference_ms": [one.reference_latency_ms for one in times],
            "speedup": [one.speedup_factor for one in times],
            "absolute": [float(one.max_absolute_error) for one in errors],
            "relative": [float(one.max_relative_error) for one in errors],
            "offset": offsets,
            "length": lengths,
            "samples": counts,
            "low_ms": [low for low, _ in ends],
            "high_ms": [high for _, high in ends],
            "speedup_low": [low for low, _ in speedups],
            "speedup_high": [high for _, high in speedups],
            "dropped": [
                len(dropped_numbers(one.dropped, count)) if one.dropped else 0
                for one, count in zip(times, counts, strict=True)
            ],
        }
        for name, column in rows.columns._asdict().items():
            column.extend(array(column.typecode, more[name]))
        rows.timestamps += [one.timestamp for one in runs]
        for number, one in enumerate(errors, begin):
            if one.extra and (note := note_of(one.extra)) is not None:
                rows.notes[number] = note
        return rows

    def _head(self, trace: Any, workload: bytes) -> int:
        key = trace.definition, trace.solution, workload
        if key not in self._heads:
            place = _place(workload, self._workloads, self._rows.workloads)
            self._heads[key] = len(self._rows.heads)
            self._rows.heads.append(Head(trace.definition, trace.solution, place))
        return self._heads[key]

    def _origin(self, run: Any) -> int:
        if run is _NO_EVALUATION:
            return NO_RUN
        where, how = run.environment, run.provenance
        if how is None and id(where) in self._places:
            return self._places[id(where)][1]
        place = _place(Origin.of(where, how), self._origins, self._rows.origins)
        if how is None:
            self._places[id(where)] = where, place  # which is kept, and so its id
        return place


def _place(one: Any, known: dict[Any, int], values: list[Any]) -> int:
    place = known.setdefault(one, len(values))
    if place == len(values):
        values.append(one)
    return place

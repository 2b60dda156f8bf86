"""Traces as flat results, and the choice of which of them a report is about."""

from __future__ import annotations

from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.report.selection import UNKNOWN_AUTHOR as UNKNOWN_AUTHOR
from flashinfer_bench.report.selection import Selection as Selection
from flashinfer_bench.stats.intervals import median_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.run_source import Ends, RunColumns, RunDetails

Conditions = tuple[str, str]
"""Name of the timer and mode of the caches; empty where a trace does not tell them."""


class Result(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One evaluation: what was run, where, and what came of it.

    Latencies are in milliseconds and None unless the solution passed. ``speedup`` is the latency of
    the definition's reference over that of the solution; None where the reference was not timed.
    Intervals are those of the trace, which a confidence of 95 % belongs to; see `with_intervals`.
    ``dropped`` samples do not count, and ``dropped_rows`` are their numbers: the first of each row,
    and the one after its last. ``timing`` says how the samples were taken.
    """

    definition: str
    op_type: str
    solution: str
    author: str
    language: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    status: EvaluationStatus
    timestamp: str
    log: str
    latency_ms: Optional[float] = None
    reference_latency_ms: Optional[float] = None
    speedup: Optional[float] = None
    samples_ms: tuple[float, ...] = ()
    max_absolute_error: Optional[float] = None
    max_relative_error: Optional[float] = None
    interval_ms: Optional[Ends] = None
    speedup_interval: Optional[Ends] = None
    dropped: int = 0
    clock: Clock = Clock()
    dropped_rows: tuple[tuple[int, int], ...] = ()
    timing: Mapping[str, Any] = {}

    @property
    def sample_total(self) -> int:
        """How many samples there are, those that were dropped included."""
        return len(self.samples_ms)

    @property
    def conditions(self) -> Conditions:
        """What has to be the same for two latencies to be compared, apart from the device."""
        return self.clock.timer, self.clock.cache

    @property
    def counted_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        out = self._dropped_numbers()
        return tuple(one for number, one in enumerate(self.samples_ms) if number not in out)

    @property
    def dropped_ms(self) -> tuple[float, ...]:
        """The samples that do not count."""
        out = self._dropped_numbers()
        return tuple(one for number, one in enumerate(self.samples_ms) if number in out)

    def _dropped_numbers(self) -> set[int]:
        end = self.sample_total
        return {n for first, after in self.dropped_rows for n in range(first, min(after, end))}

    @property
    def passed(self) -> bool:
        """Whether the solution passed."""
        return self.status is EvaluationStatus.PASSED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and _facts(self) == _facts(other)

    __hash__ = None  # type: ignore[assignment]  # axes are a dict


_facts = attrgetter(*Result.__struct_fields__)


class _Details:
    """Reads logs and samples of the runs of one definition when one of them is asked for."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._known: dict[int, RunDetails] = {}

    def read(self, numbers: Iterable[int]) -> None:
        """Read some of them, all at once."""
        new = sorted({*numbers}.difference(self._known))
        if new:
            self._known.update(zip(new, self._columns.details(new), strict=True))

    def __getitem__(self, number: int) -> RunDetails:
        if number not in self._known:  # where one is asked for, the others will be, too
            self.read(range(len(self._columns)))
        return self._known[number]


class _StoredResult(Result, frozen=True, eq=False, gc=False):
    """A result whose log and samples stay in the dataset until they are looked at."""

    details: Any = None
    number: int = 0
    sample_count: int = 0

    def _details(self) -> RunDetails:
        return self.details[self.number]  # type: ignore[no-any-return]

    log = property(lambda self: self._details().log)
    samples_ms = property(lambda self: self._details().samples_ms if self.sample_count else ())
    dropped_rows = property(lambda self: self._details().dropped if self.dropped else ())
    timing = property(lambda self: self._details().timing)
    sample_total = property(lambda self: self.sample_count)


def read_details(results: Iterable[Result]) -> None:
    """Read logs and samples of some results ahead: those of these only, and together.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Raises
    ------
    DataError
        If a file of the dataset was changed since the results were collected.
    """
    groups: dict[int, tuple[_Details, list[int]]] = {}
    for result in results:
        if isinstance(result, _StoredResult):
            details = result.details
            groups.setdefault(id(details), (details, []))[1].append(result.number)
    for details, numbers in groups.values():
        details.read(numbers)


def read_samples(results: Iterable[Result]) -> None:
    """Read the samples of some results ahead, where there are any; as `read_details` does it."""
    read_details(one for one in results if isinstance(one, _StoredResult) and one.sample_count)


def collect_results(trace_set: TraceSet, selection: Optional[Selection] = None) -> list[Result]:
    """Flatten the traces of a dataset.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset. Traces of definitions or solutions that it lacks are included; their op_type is
        empty and their author `UNKNOWN_AUTHOR`.
    selection : Selection, optional
        What to keep; everything by default.

    Returns
    -------
    list of Result
        In the order of the dataset.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    return flatten(trace_set, choose_runs(trace_set, selection or Selection()))


def flatten(trace_set: TraceSet, chosen: Mapping[str, RunColumns]) -> list[Result]:
    """Return the results of runs.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    chosen : mapping of str to RunColumns
        Some of its runs by definition, as `choose_runs` returns them.
    """
    solutions = _makers(trace_set)
    results: list[Result] = []
    for name, columns in chosen.items():
        results += _results(columns, op_type_of(trace_set, name), solutions)
    return results


def choose_runs(trace_set: TraceSet, selection: Selection) -> dict[str, RunColumns]:
    """Return the runs that a report is about, column by column.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    selection : Selection
        What to keep.

    Returns
    -------
    dict of str to RunColumns
        By definition, in the order of the dataset; those without runs are left out.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    selection.check_names(trace_set)
    solutions = _makers(trace_set)
    chosen = {}
    for name, columns in trace_set.run_columns().items():
        if selection.wants_definition(name, op_type_of(trace_set, name)):
            kept = _narrowed(columns, selection, solutions)
            if kept:
                chosen[name] = kept
    return chosen


class _Maker(NamedTuple):
    """Who wrote a solution, and in which language."""

    author: str
    language: str


_UNKNOWN = _Maker(UNKNOWN_AUTHOR, "")


def _makers(trace_set: TraceSet) -> dict[str, _Maker]:
    groups = trace_set.solutions.values()
    return {s.name: _Maker(s.author, str(s.spec.language)) for group in groups for s in group}


def op_type_of(trace_set: TraceSet, name: str) -> str:
    """Return the op type of a definition; empty for one that only traces know."""
    definition = trace_set.definitions.get(name)
    return definition.op_type if definition is not None else ""


def _narrowed(
    columns: RunColumns, selection: Selection, solutions: Mapping[str, _Maker]
) -> RunColumns:
    """Return the runs of the selected solutions, authors and hardware."""
    wanted = {
        name
        for name in set(columns.solution)
        if selection.wants_solution(name, solutions.get(name, _UNKNOWN).author)
    }
    devices = {name for name in set(columns.hardware) if selection.wants_hardware(name)}
    if wanted.issuperset(columns.solution) and devices.issuperset(columns.hardware):
        return columns
    pairs = zip(columns.solution, columns.hardware, strict=True)
    kept = [number for number, (s, h) in enumerate(pairs) if s in wanted and h in devices]
    return columns.take(kept)


def _results(
    columns: RunColumns, op_type: str, solutions: Mapping[str, _Maker]
) -> Iterator[Result]:
    makers = [solutions.get(name, _UNKNOWN) for name in columns.solution]
    latencies = columns.latency_ms
    pairs = list(zip(columns.reference_latency_ms, latencies, strict=True))
    return map(
        _StoredResult,
        columns.definition,
        repeat(op_type),
        columns.solution,
        [maker.author for maker in makers],
        [maker.language for maker in makers],
        columns.workload,
        columns.axes,
        columns.hardware,
        columns.status,
        columns.timestamp,
        repeat(""),
        latencies,
        [reference if reference and latency else None for reference, latency in pairs],
        # Recomputed: files differ in what they wrote as speed-up where nothing was timed.
        [reference / latency if reference and latency else None for reference, latency in pairs],
        repeat(()),
        columns.max_absolute_error,
        columns.max_relative_error,
        columns.interval_ms,
        columns.speedup_interval,
        columns.dropped,
        columns.clock,
        repeat(()),
        repeat({}),
        repeat(_Details(columns)),
        count(),
        columns.sample_counts,
    )


def latest_results(results: Iterable[Result]) -> list[Result]:
    """Keep the latest result of each solution, workload and device with each timer and cache mode.

    A dataset keeps every trace ever recorded; a report is about the present state. Traces are
    compared by their time stamps, and at equal ones the later in the dataset counts. A failure
    replaces all before it, whatever they were timed with; what passes replaces failures.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    list of Result
        At most one for each (definition, solution, workload, hardware) and timer with cache mode.
    """
    kept: dict[tuple[str, str, str, str], dict[Optional[Conditions], Result]] = {}
    for result in sorted(results, key=attrgetter("timestamp")):
        key = (result.definition, result.solution, result.workload, result.hardware)
        if not result.passed:
            kept[key] = {None: result}
        else:
            mine = kept.setdefault(key, {})
            mine.pop(None, None)
            mine[result.conditions] = result
    return [result for mine in kept.values() for result in mine.values()]


def with_intervals(results: Iterable[Result]) -> list[Result]:
    """Fill in the intervals of latencies that older traces lack, where they have samples.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    list of Result
        The same; those without samples still without an interval.

    Raises
    ------
    DataError
        If a file of the dataset was changed since the results were collected.
    """
    given = list(results)
    lacking = [n for n, one in enumerate(given) if _lacks_interval(one)]
    read_samples(given[number] for number in lacking)
    for number in lacking:
        counted = given[number].counted_ms
        if counted:
            found = median_interval(counted)
            ends = (found.low, found.high)
            given[number] = msgspec.structs.replace(given[number], interval_ms=ends)
    return given


def _lacks_interval(result: Result) -> bool:
    return bool(result.latency_ms and result.interval_ms is None and result.sample_total)

"""Runs as flat results, the choice of which of them a report is about, and what may be compared."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional, Union

import msgspec

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.data.run_source import RunDetails, RunRow
from flashinfer_bench.data.samples import dropped_numbers
from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.stats.intervals import median_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.run_source import RunColumns

Conditions = tuple[str, str]
"""Name of the timer and mode of the caches; empty where a trace does not tell them."""

Setting = tuple[str, Conditions]
"""A device, and the timer and cache mode used on it."""

UNTOLD: Conditions = ("", "")
"""Of traces that name neither timer nor cache mode: those of older releases."""

UNKNOWN_AUTHOR = "(unknown)"
"""Author shown for a trace whose solution is not in the dataset."""


@dataclass(frozen=True)
class Selection:
    """Which part of a dataset to look at; an empty tuple selects everything.

    Parameters
    ----------
    definitions, solutions, op_types, authors : tuple of str
        Exact names.
    hardware : tuple of str
        Parts of the names of devices, upper and lower case being the same.
    """

    definitions: tuple[str, ...] = ()
    solutions: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()

    def check_names(self, trace_set: TraceSet) -> None:
        """Refuse names that the dataset does not have.

        Raises
        ------
        UnknownNameError
            With the unknown names in ``unknown``, and what is close to them in the hint.
        """
        solutions = [one for group in trace_set.solutions.values() for one in group]
        names = {one.name for one in solutions}
        if not names.issuperset(self.solutions):  # of traces whose solution is gone
            names.update(*(columns.solution for columns in trace_set.run_columns().values()))
        op_types = {one.op_type for one in trace_set.definitions.values()}
        _refuse_unknown("definition", self.definitions, set(trace_set.definitions))
        _refuse_unknown("solution", self.solutions, names)
        _refuse_unknown("op_type", self.op_types, op_types)
        _refuse_unknown("author", self.authors, {UNKNOWN_AUTHOR, *(s.author for s in solutions)})

    def wants_definition(self, name: str, op_type: str) -> bool:
        """Return whether results of this definition are wanted."""
        return _wanted(name, self.definitions) and _wanted(op_type, self.op_types)

    def wants_solution(self, name: str, author: str) -> bool:
        """Return whether results of this solution are wanted."""
        return _wanted(name, self.solutions) and _wanted(author, self.authors)

    def wants_hardware(self, name: str) -> bool:
        """Return whether results from this device are wanted."""
        parts = self.hardware
        return not parts or any(part.lower() in name.lower() for part in parts)


def _wanted(name: str, names: tuple[str, ...]) -> bool:
    return not names or name in names


def _refuse_unknown(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    unknown = tuple(name for name in wanted if name not in known)
    if not unknown:
        return
    close = get_close_matches(unknown[0], known, n=3)
    listed = close or sorted(known)[:8]
    label = "did you mean" if close else f"some of the {len(known)} that there are"
    raise UnknownNameError(
        f"the dataset has no {kind} {', '.join(map(repr, unknown))}",
        hint=f"{label}: {', '.join(listed)}" if listed else f"the dataset has no {kind} at all",
        unknown=unknown,
    )


class _StoredDetails:
    """Reads logs and samples of the runs of one definition when one of them is asked for."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._known: dict[int, RunDetails] = {}

    def read(self, numbers: Iterable[int]) -> None:
        new = sorted({*numbers}.difference(self._known))
        if new:
            self._known.update(zip(new, self._columns.details(new), strict=True))

    def __getitem__(self, number: int) -> RunDetails:
        if number not in self._known:  # where one is asked for, the others will be, too
            self.read(range(len(self._columns)))
        return self._known[number]


class Result(RunRow, frozen=True, eq=False, gc=False):
    """One evaluation: what was run, where, and what came of it.

    Latencies are in milliseconds and None unless the solution passed.
    Intervals are those of the trace, which a confidence of 95 % belongs to; see `with_intervals`.
    ``dropped`` samples do not count. Log and samples of a stored trace stay in the dataset until
    they are looked at: ``details[number]``.
    """

    op_type: str = ""
    author: str = UNKNOWN_AUTHOR
    language: str = ""
    sample_total: int = 0
    details: Union[Sequence[RunDetails], _StoredDetails] = (RunDetails("", ()),)
    number: int = 0

    @property
    def speedup(self) -> Optional[float]:
        """The reference's latency over the solution's; None where the reference was not timed.

        Recomputed: files differ in what they wrote where nothing was timed.
        """
        latency, reference = self.latency_ms, self.reference_latency_ms
        return reference / latency if latency and reference else None

    @property
    def log(self) -> str:
        """What was printed and noticed."""
        return self.details[self.number].log

    @property
    def timing(self) -> Mapping[str, Any]:
        """How the samples were taken, as ``provenance.timing`` of the trace has it."""
        return self.details[self.number].timing

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """All samples in the order taken, those that were dropped included."""
        return self.details[self.number].samples_ms if self.sample_total else ()

    @property
    def counted_ms(self) -> tuple[float, ...]:
        """The samples that count."""
        return self._samples(counted=True)

    @property
    def dropped_ms(self) -> tuple[float, ...]:
        """The samples that do not count."""
        return self._samples(counted=False)

    def _samples(self, *, counted: bool) -> tuple[float, ...]:
        rows = self.details[self.number].dropped if self.dropped else ()
        out = dropped_numbers(rows, self.sample_total)
        return tuple(one for n, one in enumerate(self.samples_ms) if (n not in out) is counted)

    @property
    def conditions(self) -> Conditions:
        """What has to be the same for two latencies to be compared, apart from the device."""
        return self.clock.timer, self.clock.cache

    @property
    def passed(self) -> bool:
        """Whether the solution passed."""
        return self.status is EvaluationStatus.PASSED


def read_details(results: Iterable[Result]) -> None:
    """Read logs and samples of some results ahead: those of these only, and together.

    Raises
    ------
    DataError
        If a file of the dataset was changed since the results were collected.
    """
    groups: dict[int, tuple[_StoredDetails, list[int]]] = {}
    for result in results:
        details = result.details
        if isinstance(details, _StoredDetails):
            groups.setdefault(id(details), (details, []))[1].append(result.number)
    for details, numbers in groups.values():
        details.read(numbers)


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
    wanted = selection or Selection()
    wanted.check_names(trace_set)
    makers = {
        one.name: (one.author, str(one.spec.language))
        for group in trace_set.solutions.values()
        for one in group
    }
    results: list[Result] = []
    for name, columns in trace_set.run_columns().items():
        op_type = op_type_of(trace_set, name)
        if wanted.wants_definition(name, op_type):
            details = _StoredDetails(columns)
            found = [makers.get(solution, (UNKNOWN_AUTHOR, "")) for solution in columns.solution]
            made_by = [author for author, _ in found], [language for _, language in found]
            of_traces = columns.sample_counts, repeat(details), count()
            results += map(Result, *columns.fields, repeat(op_type), *made_by, *of_traces)
    devices = {name for name in {one.hardware for one in results} if wanted.wants_hardware(name)}
    return [
        one
        for one in results
        if one.hardware in devices and wanted.wants_solution(one.solution, one.author)
    ]


def op_type_of(trace_set: TraceSet, name: str) -> str:
    """Return the op type of a definition; empty for one that only traces know."""
    definition = trace_set.definitions.get(name)
    return definition.op_type if definition is not None else ""


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
    lacking = [
        number
        for number, one in enumerate(given)
        if one.latency_ms and one.interval_ms is None and one.sample_total
    ]
    read_details(given[number] for number in lacking)
    for number in lacking:
        counted = given[number].counted_ms
        if counted:
            found = median_interval(counted)
            ends = (found.low, found.high)
            given[number] = msgspec.structs.replace(given[number], interval_ms=ends)
    return given


# ------------------------------------------------------------------------- what may be compared


def label_of(conditions: Conditions) -> str:
    """Return timer and cache mode as they are read."""
    timer, cache = conditions
    return f"{timer or 'unknown timer'}, {cache or 'unknown cache mode'}"


def split_by_setting(results: Iterable[Result]) -> dict[Setting, list[Result]]:
    """Return results by what may be compared: device, timer and cache mode.

    A failure has no timer. It counts wherever its definition was timed on that device; if nobody
    solved that, wherever anything was.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    dict
        By device, timer and cache mode in the order of their names; results in their order.
    """
    given = list(results)
    timed: dict[tuple[str, str], set[Conditions]] = {}
    anything: dict[str, set[Conditions]] = {}
    for one in given:
        if one.passed:
            timed.setdefault((one.definition, one.hardware), set()).add(one.conditions)
            anything.setdefault(one.hardware, set()).add(one.conditions)
    found: dict[Setting, list[Result]] = {}
    for one in given:
        here = {one.conditions}
        if not one.passed:
            here = timed.get((one.definition, one.hardware)) or anything.get(one.hardware, {UNTOLD})
        for conditions in here:
            found.setdefault((one.hardware, conditions), []).append(one)
    return dict(sorted(found.items()))


def mixtures(settings: Iterable[Setting]) -> dict[str, list[Conditions]]:
    """Return the devices on which several timers or cache modes were used, and these."""
    found: dict[str, list[Conditions]] = {}
    for hardware, conditions in sorted(set(settings)):
        found.setdefault(hardware, []).append(conditions)
    return {hardware: several for hardware, several in found.items() if len(several) > 1}

"""Runs as flat results: selection, the latest of each, and which of them are comparable."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional

import msgspec
from msgspec.structs import astuple

from flashinfer_bench.data.run_source import RunRow, read_details
from flashinfer_bench.data.selection import UNKNOWN_AUTHOR, Selection
from flashinfer_bench.stats.intervals import median_interval

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Solution, TraceSet

Conditions = tuple[str, str]
"""Name of the timer and cache mode; empty if a trace does not say."""

Setting = tuple[str, Conditions]
"""A device, and the timer and cache mode used on it."""

UNTOLD: Conditions = ("", "")
"""The conditions of traces by older releases, which record neither timer nor cache mode."""


class Result(RunRow, frozen=True, eq=False, gc=False):
    """One evaluation: what was run, where, and with which result.

    Latencies are in milliseconds and None unless the solution passed.
    Intervals are the 95 % intervals of the trace; see `with_intervals`. ``dropped`` samples do not
    count. Log and samples stay in the dataset; see `read_details`.
    """

    op_type: str = ""
    author: str = UNKNOWN_AUTHOR
    language: str = ""

    @property
    def conditions(self) -> Conditions:
        """Timer and cache mode, which comparable latencies share (and the device)."""
        return self.origin.clock[:2]

    @property
    def key(self) -> tuple[str, ...]:
        """Definition, device, timer, cache mode and solution, which a score is about."""
        return (self.definition, self.hardware, *self.conditions, self.solution)


def result_of(row: RunRow, op_type: str, solution: Optional[Solution]) -> Result:
    """Return a recorded run as a result; `solution` is None if the dataset does not have it."""
    maker = (solution.author, str(solution.spec.language)) if solution else (UNKNOWN_AUTHOR, "")
    fields: tuple[Any, ...] = (*astuple(row), op_type, *maker)
    return Result(*fields)


def collect_results(trace_set: TraceSet, selection: Optional[Selection] = None) -> list[Result]:
    """Flatten the traces of a dataset.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset. Traces of definitions or solutions that it lacks are included, with an empty
        op_type and the author `UNKNOWN_AUTHOR`.
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
    solutions = {one.name: one for group in trace_set.solutions.values() for one in group}
    op_types = {name: one.op_type for name, one in trace_set.definitions.items()}
    wants_hardware = cache(wanted.wants_hardware)
    results: list[Result] = []
    for row in trace_set.run_rows():
        task = row.task
        op_type = op_types.get(task.definition, "")
        solution = solutions.get(task.solution)
        author = solution.author if solution is not None else UNKNOWN_AUTHOR
        if (
            wanted.wants_definition(task.definition, op_type)
            and wanted.wants_solution(task.solution, author)
            and wanted.wants_workload(task.workload)
            and wants_hardware(row.origin.hardware)
        ):
            results.append(result_of(row, op_type, solution))
    return results


def latest_results(results: Iterable[Result]) -> list[Result]:
    """Keep the latest result of each solution, workload and device with each timer and cache mode.

    A dataset keeps all traces; reports show the current state. Traces are ordered by timestamp,
    then by position in the dataset. A failure replaces all earlier results, with any timer; a
    passing result replaces earlier failures.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    list of Result
        At most one for each definition, solution, workload, hardware, timer and cache mode.
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


def grouped(results: Iterable[Result], name: str) -> dict[str, list[Result]]:
    """Group results by an attribute, such as ``definition``."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(getattr(result, name), []).append(result)
    return groups


def with_intervals(results: Iterable[Result]) -> list[Result]:
    """Compute the intervals that older traces lack, if they have samples.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    list of Result
        The same results; those without samples have no interval.

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
    details = read_details(given[number] for number in lacking)
    for number, (_, counted, *_) in zip(lacking, details, strict=True):
        if counted:
            found = median_interval(counted)
            ends = (found.low, found.high)
            given[number] = msgspec.structs.replace(given[number], interval_ms=ends)
    return given


# ------------------------------------------------------------------------------- comparability


def label_of(conditions: Conditions) -> str:
    """Return timer and cache mode as text."""
    timer, cache = conditions
    return f"{timer or 'unknown timer'}, {cache or 'unknown cache mode'}"


def split_by_setting(results: Iterable[Result]) -> dict[Setting, list[Result]]:
    """Group comparable results: those with the same device, timer and cache mode.

    A failure has no timer. It is in each group of its device in which its definition was timed; if
    the definition was never solved there, in all groups of the device.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    dict
        Results by device, timer and cache mode, sorted by name; results keep their order.
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
    """Return the timers and cache modes of each device on which several were used."""
    found: dict[str, list[Conditions]] = {}
    for hardware, conditions in sorted(set(settings)):
        found.setdefault(hardware, []).append(conditions)
    return {hardware: several for hardware, several in found.items() if len(several) > 1}

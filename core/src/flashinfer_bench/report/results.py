"""Traces as flat results, and the choice of which of them a report is about."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data import Evaluation, Solution, Trace, TraceSet

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
        solutions = [s for group in trace_set.solutions.values() for s in group]
        names = [s.name for s in solutions]
        op_types = {d.op_type for d in trace_set.definitions.values()}
        _refuse_unknown("definition", self.definitions, trace_set.definitions)
        _refuse_unknown("solution", self.solutions, {*names, *self._recorded(trace_set)})
        _refuse_unknown("op_type", self.op_types, op_types)
        _refuse_unknown("author", self.authors, {UNKNOWN_AUTHOR, *(s.author for s in solutions)})

    def _recorded(self, trace_set: TraceSet) -> set[str]:
        """Return the solutions of the traces, which may be gone from the dataset."""
        if not self.solutions:
            return set()  # reading the traces is the slow part: not without need
        groups = trace_set.traces.values()
        return {trace.solution for group in groups for trace in group if trace.solution}

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


def _refuse_unknown(kind: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    there = set(known)
    unknown = tuple(name for name in wanted if name not in there)
    if not unknown:
        return
    close = get_close_matches(unknown[0], there, n=3)
    listed = close or sorted(there)[:8]
    label = "did you mean" if close else f"some of the {len(there)} that there are"
    raise UnknownNameError(
        f"the dataset has no {kind} {', '.join(map(repr, unknown))}",
        hint=f"{label}: {', '.join(listed)}" if listed else f"the dataset has no {kind} at all",
        unknown=unknown,
    )


@dataclass(frozen=True)
class Result:
    """One evaluation: what was run, where, and what came of it.

    Latencies are in milliseconds and None unless the solution passed. ``speedup`` is the latency of
    the definition's reference over that of the solution; None where the reference was not timed.
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

    @property
    def passed(self) -> bool:
        """Whether the solution passed."""
        return self.status is EvaluationStatus.PASSED


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
    selection = selection or Selection()
    selection.check_names(trace_set)
    return list(_results(trace_set, selection))


def _results(trace_set: TraceSet, selection: Selection) -> Iterator[Result]:
    solutions = {s.name: s for group in trace_set.solutions.values() for s in group}
    for name, traces in trace_set.traces.items():
        definition = trace_set.definitions.get(name)
        op_type = definition.op_type if definition is not None else ""
        if not selection.wants_definition(name, op_type):
            continue
        for trace in traces:
            result = _result(trace, op_type, solutions)
            if result is not None and _selected(result, selection):
                yield result


def _selected(result: Result, selection: Selection) -> bool:
    return selection.wants_solution(result.solution, result.author) and selection.wants_hardware(
        result.hardware
    )


def _result(trace: Trace, op_type: str, solutions: Mapping[str, Solution]) -> Optional[Result]:
    evaluation = trace.evaluation
    if trace.solution is None or evaluation is None:
        return None
    solution = solutions.get(trace.solution)
    return Result(
        definition=trace.definition,
        op_type=op_type,
        solution=trace.solution,
        author=solution.author if solution is not None else UNKNOWN_AUTHOR,
        language=str(solution.spec.language) if solution is not None else "",
        workload=trace.workload.uuid,
        axes=trace.workload.axes,
        hardware=evaluation.environment.hardware,
        status=evaluation.status,
        timestamp=evaluation.timestamp,
        log=evaluation.log,
        **_numbers(evaluation),
    )


def _numbers(evaluation: Evaluation) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    performance, correctness = evaluation.performance, evaluation.correctness
    if performance is not None:
        timed = performance.reference_latency_ms > 0 and performance.latency_ms > 0
        numbers["latency_ms"] = performance.latency_ms
        numbers["reference_latency_ms"] = performance.reference_latency_ms if timed else None
        # Recomputed: files differ in what they wrote as speed-up where nothing was timed.
        numbers["speedup"] = (
            performance.reference_latency_ms / performance.latency_ms if timed else None
        )
        numbers["samples_ms"] = tuple(performance.samples_ms or ())
    if correctness is not None:
        numbers["max_absolute_error"] = correctness.max_absolute_error
        numbers["max_relative_error"] = correctness.max_relative_error
    return numbers


def latest_results(results: Iterable[Result]) -> list[Result]:
    """Keep the latest result of each solution, workload and device.

    A dataset keeps every trace ever recorded; a report is about the present state. Traces are
    compared by their time stamps, and at equal ones the later in the dataset counts.

    Parameters
    ----------
    results : iterable of Result
        Any results.

    Returns
    -------
    list of Result
        At most one for each (definition, solution, workload, hardware).
    """
    kept: dict[tuple[str, str, str, str], Result] = {}
    for result in sorted(results, key=attrgetter("timestamp")):
        key = (result.definition, result.solution, result.workload, result.hardware)
        kept[key] = result
    return list(kept.values())

"""Traces should speak about what is in the dataset, in numbers that are possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Performance, Trace
    from flashinfer_bench.validate.findings import Finding, Place
    from flashinfer_bench.validate.records import Contents, Record

# Of one file: its workloads, those that runs name, and solutions that are gone.
_Facts = tuple["dict[str, set[str]]", "dict[str, dict[str, Place]]", "dict[str, tuple[Place, int]]"]

_TOLERANCE = 0.02
"""Difference between the recorded and the computed speed-up that rounding may explain."""


class TraceCheck:
    """Finds traces of unknown definitions, solutions and workloads, and impossible numbers.

    A trace outlives what it speaks about: that its solution or workload is gone is a warning, one
    for each of them and not for each trace.
    """

    def __init__(self, contents: Contents) -> None:
        self._definitions = contents.definitions
        self._solutions = contents.solutions
        self._workloads: dict[str, set[str]] = {}
        self._runs: dict[str, dict[str, Place]] = {}
        self._orphans: dict[str, tuple[Place, int]] = {}

    def visit(self, record: Record) -> Iterator[Finding]:
        """Check one trace of a run, and remember workloads."""
        trace, place = record
        if trace.solution is None:
            self._workloads.setdefault(trace.definition, set()).add(trace.workload.uuid)
            return
        self._runs.setdefault(trace.definition, {}).setdefault(trace.workload.uuid, place)
        yield from self._check_names(trace, trace.solution, place)
        yield from _check_numbers(trace, place)

    def facts(self) -> _Facts:
        """Return the workloads of the file, those that runs name, and solutions that are gone."""
        return self._workloads, self._runs, self._orphans

    @classmethod
    def combine(cls, facts: list[_Facts], contents: Contents) -> Iterator[Finding]:
        """Tell of what is gone."""
        workloads: dict[str, set[str]] = {}
        runs: dict[str, dict[str, Place]] = {}
        orphans: dict[str, tuple[Place, int]] = {}
        for known, run, gone in facts:
            for name, uuids in known.items():
                workloads.setdefault(name, set()).update(uuids)
            for name, places in run.items():
                runs[name] = {**places, **runs.get(name, {})}
            for name, (place, count) in gone.items():
                first, so_far = orphans.get(name, (place, 0))
                orphans[name] = first, so_far + count
        yield from _tell_solutions(orphans)
        yield from _tell_workloads(runs, workloads, contents)

    def _check_names(self, trace: Trace, solution: str, place: Place) -> Iterator[Finding]:
        if trace.definition not in self._definitions:
            message = f"there is no definition {trace.definition!r} in the dataset"
            yield place.error(message, "definition")
        known = self._solutions.get(solution)
        if known is None:
            first, count = self._orphans.get(solution, (place, 0))
            self._orphans[solution] = (first, count + 1)
        elif known.definition != trace.definition:
            message = (
                f"{solution!r} is a solution of {known.definition!r}, not of {trace.definition!r}"
            )
            yield place.error(message, "solution")


def _tell_solutions(orphans: dict[str, tuple[Place, int]]) -> Iterator[Finding]:
    for name, (place, count) in orphans.items():
        traces = "this is the only trace" if count == 1 else f"this is one of {count} traces"
        message = f"there is no solution {name!r} in the dataset; {traces} of it"
        yield place.warning(message, "solution")


def _tell_workloads(
    runs: dict[str, dict[str, Place]], workloads: dict[str, set[str]], contents: Contents
) -> Iterator[Finding]:
    for definition, places in runs.items():
        gone = places.keys() - workloads.get(definition, set())
        if gone and definition in contents.definitions:
            first = min(gone, key=lambda uuid: (places[uuid].path, places[uuid].line or 0))
            message = (
                f"{len(gone)} of the {len(places)} workloads in the traces of {definition!r} are "
                f"not in the dataset; the first is {first}"
            )
            yield places[first].warning(message, "workload.uuid")


def _check_numbers(trace: Trace, place: Place) -> Iterator[Finding]:
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status is not EvaluationStatus.PASSED:
        return
    if evaluation.performance is not None:
        yield from _check_performance(evaluation.performance, place)
    errors = evaluation.correctness
    if errors is not None and errors.max_absolute_error != errors.max_absolute_error:
        message = "it passed with an error that is not a number"
        yield place.warning(message, "evaluation.correctness.max_absolute_error")


def _check_performance(performance: Performance, place: Place) -> Iterator[Finding]:
    field = "evaluation.performance"
    if performance.latency_ms <= 0.0:
        yield place.error("a latency must be positive", f"{field}.latency_ms")
        return
    computed = performance.reference_latency_ms / performance.latency_ms
    recorded = performance.speedup_factor
    if computed and abs(recorded - computed) > _TOLERANCE * max(computed, recorded):
        message = f"{recorded:g} is recorded, but the latencies give {computed:.4g}"
        yield place.warning(message, f"{field}.speedup_factor")

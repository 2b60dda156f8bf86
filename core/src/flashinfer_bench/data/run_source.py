"""Where rankings and reports get runs from: traces in memory, or an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol

from flashinfer_bench.data import ranking
from flashinfer_bench.data.trace import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.ranking import Runs
    from flashinfer_bench.data.trace import Evaluation, Trace


class Clock(NamedTuple):
    """How the latency of a run was taken; an empty text is what its trace does not say.

    Attributes
    ----------
    timer : str
        Name of the timer.
    cache : str
        State of the device's caches before each call: ``cold`` or ``warm``.
    stop_rule : str
        What decided how many calls were timed.
    reference : str
        When the reference was timed: ``beside`` the solution, ``before`` it, or ``not``.
    """

    timer: str = ""
    cache: str = ""
    stop_rule: str = ""
    reference: str = ""

    @classmethod
    def of(cls, timer: Any, stop_rule: Any, timing: Any) -> Clock:
        """Return the clock that the provenance of a run names."""
        told = timing if isinstance(timing, dict) else {}
        words = (timer, told.get("cache"), stop_rule, told.get("reference"))
        return cls(*(word if isinstance(word, str) else "" for word in words))


Ends = tuple[float, float]
"""Both ends of an interval."""


class RunRow(NamedTuple):
    """A run without its log: what tables and rankings show of it.

    Times are in milliseconds. They are None unless the run passed; the errors are None where
    outputs were not compared. ``dropped`` counts the samples that do not count.
    """

    definition: str
    solution: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    status: EvaluationStatus
    timestamp: str
    latency_ms: Optional[float]
    reference_latency_ms: Optional[float]
    speedup_factor: Optional[float]
    max_absolute_error: Optional[float]
    max_relative_error: Optional[float]
    interval_ms: Optional[Ends] = None
    speedup_interval: Optional[Ends] = None
    dropped: int = 0
    clock: Clock = Clock()


class RunDetails(NamedTuple):
    """What only the line of a run tells: it is large, and seldom asked for.

    Attributes
    ----------
    log : str
        What was printed and noticed.
    samples_ms : tuple of float
        All samples in milliseconds, in the order taken.
    dropped : tuple of (int, int)
        Samples that do not count: number of the first of each row, and of the one after its last.
    timing : mapping
        How the samples were taken, as ``provenance.timing`` of the trace has it.
    """

    log: str
    samples_ms: tuple[float, ...]
    dropped: tuple[tuple[int, int], ...] = ()
    timing: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, evaluation: Evaluation) -> RunDetails:
        """Return the details of an evaluation."""
        times, origin = evaluation.performance, evaluation.provenance
        timing = (origin.timing if origin is not None else None) or {}
        if times is None:
            return cls(evaluation.log, (), (), timing)
        return cls(
            evaluation.log, tuple(times.samples_ms or ()), tuple(times.dropped or ()), timing
        )


def count_dropped(rows: Optional[Iterable[tuple[int, int]]], samples: int) -> int:
    """Return how many samples lie in some rows, whatever these overlap or exceed.

    Parameters
    ----------
    rows : iterable of (int, int), optional
        First number of each row and the one after its last, as ``performance.dropped`` has them.
    samples : int
        How many samples there are.
    """
    end = count = 0
    for first, after in sorted(rows or ()):
        count += max(0, min(after, samples) - max(first, end))
        end = max(end, after)
    return count


@dataclass(frozen=True)
class RunColumns:
    """Many runs, with one sequence for each field of `RunRow`.

    Attributes
    ----------
    sample_counts : sequence of int
        How many samples there are of each.
    details : callable
        Takes the numbers of some runs, from 0 on and in ascending order, and returns their
        `RunDetails`. It raises a DataError if their file was changed meanwhile.
    """

    definition: Sequence[str]
    solution: Sequence[str]
    workload: Sequence[str]
    axes: Sequence[Mapping[str, int]]
    hardware: Sequence[str]
    status: Sequence[EvaluationStatus]
    timestamp: Sequence[str]
    latency_ms: Sequence[Optional[float]]
    reference_latency_ms: Sequence[Optional[float]]
    speedup_factor: Sequence[Optional[float]]
    max_absolute_error: Sequence[Optional[float]]
    max_relative_error: Sequence[Optional[float]]
    interval_ms: Sequence[Optional[Ends]]
    speedup_interval: Sequence[Optional[Ends]]
    dropped: Sequence[int]
    clock: Sequence[Clock]
    sample_counts: Sequence[int] = field(kw_only=True)
    details: Callable[[Sequence[int]], list[RunDetails]] = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.solution)

    def rows(self) -> Iterator[RunRow]:
        """Yield the runs one by one."""
        columns = (getattr(self, name) for name in RunRow._fields)
        return map(RunRow._make, zip(*columns, strict=True))

    def take(self, numbers: Sequence[int]) -> RunColumns:
        """Return some of the runs.

        Parameters
        ----------
        numbers : sequence of int
            Their numbers, from 0 on and in ascending order.
        """

        def pick(column: Sequence[Any]) -> list[Any]:
            return [column[number] for number in numbers]

        return RunColumns(
            *(pick(getattr(self, name)) for name in RunRow._fields),
            sample_counts=pick(self.sample_counts),
            details=lambda chosen: self.details([numbers[n] for n in chosen]),
        )


class RunDigests(Protocol):
    """What rankings ask of the runs of a dataset, by definition."""

    def names(self) -> Iterable[str]:
        """Return the definitions that have runs."""

    def counts(self, definition: str) -> tuple[int, int]:
        """Return the number of runs, and of those that passed."""

    def runs(self, definition: str) -> Runs:
        """Return the runs, digested."""


class RunSource(RunDigests, Protocol):
    """The runs of a dataset, by definition."""

    def best(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor; of equals the first."""

    def filtered(self, definition: str, atol: float, rtol: float) -> list[Trace]:
        """Return the traces that passed within both tolerances."""

    def columns(self, definition: str) -> RunColumns:
        """Return the runs, in their order."""

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace, in their order."""


class MemoryRuns:
    """Runs in memory.

    Parameters
    ----------
    traces, workloads : mapping of str to list of Trace
        By definition.
    """

    def __init__(
        self, traces: Mapping[str, list[Trace]], workloads: Mapping[str, list[Trace]]
    ) -> None:
        self._traces, self._workloads = traces, workloads

    def names(self) -> Iterable[str]:
        """Return the definitions that have an entry."""
        return self._traces

    def counts(self, definition: str) -> tuple[int, int]:
        """Return the number of runs, and of those that passed."""
        evaluations = [trace.evaluation for trace in self._traces.get(definition, ())]
        statuses = [one.status for one in evaluations if one is not None]
        return len(statuses), statuses.count(EvaluationStatus.PASSED)

    def runs(self, definition: str) -> Runs:
        """Return the runs, digested; errors as of `ranking.digest_runs`."""
        return ranking.digest_runs(self._traces.get(definition, ()))

    def best(
        self, definition: str, axes: Optional[Mapping[str, int]], atol: float, rtol: float
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor; of equals the first."""
        return ranking.best_trace(self._traces.get(definition, ()), axes, atol, rtol)

    def filtered(self, definition: str, atol: float, rtol: float) -> list[Trace]:
        """Return the traces that passed within both tolerances."""
        return ranking.filter_traces(self._traces.get(definition, ()), atol, rtol)

    def columns(self, definition: str) -> RunColumns:
        """Return the runs, in their order."""
        runs: list[Evaluation] = []
        rows: list[RunRow] = []
        for trace in self._traces.get(definition, ()):
            row = _row(trace)
            if row is not None and trace.evaluation is not None:
                rows.append(row)
                runs.append(trace.evaluation)
        return RunColumns(
            *(zip(*rows, strict=True) if rows else ((),) * len(RunRow._fields)),
            sample_counts=[len(RunDetails.of(run).samples_ms) for run in runs],
            details=lambda numbers: [RunDetails.of(runs[number]) for number in numbers],
        )

    def workload_uuids(self, definition: str) -> list[str]:
        """Return the uuid of each workload trace, in their order."""
        return [trace.workload.uuid for trace in self._workloads.get(definition, ())]


def _row(trace: Trace) -> Optional[RunRow]:
    one = trace.evaluation
    if one is None or trace.solution is None:
        return None
    times, errors, origin = one.performance, one.correctness, one.provenance
    samples = len(times.samples_ms or ()) if times is not None else 0
    return RunRow(
        trace.definition,
        trace.solution,
        trace.workload.uuid,
        trace.workload.axes,
        one.environment.hardware,
        one.status,
        one.timestamp,
        times.latency_ms if times is not None else None,
        times.reference_latency_ms if times is not None else None,
        times.speedup_factor if times is not None else None,
        errors.max_absolute_error if errors is not None else None,
        errors.max_relative_error if errors is not None else None,
        times.interval_ms if times is not None else None,
        times.speedup_interval if times is not None else None,
        count_dropped(times.dropped, samples) if times is not None else 0,
        Clock.of(origin.timer, origin.stop_rule, origin.timing) if origin is not None else Clock(),
    )

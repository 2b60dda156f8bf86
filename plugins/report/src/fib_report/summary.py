"""Summary of a dataset: counts, how latencies were measured, and the ranking of the authors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fib_report.authors import rankable
from fib_report.results import collect_results
from fib_report.scores import natural_order
from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fib_report.results import Result
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.run_source import Clock
    from flashinfer_bench.data.selection import Selection


@dataclass(frozen=True)
class DefinitionCounts:
    """Counts for one definition."""

    definition: str
    op_type: str
    solutions: int
    workloads: int
    traces: int
    passed: int
    failed: int


@dataclass(frozen=True)
class TimingCounts:
    """How the latencies of passing runs were measured.

    Attributes
    ----------
    hardware, timer, cache, stop_rule, reference : str
        The device, and what traces say about the measurement; empty if they do not say.
    runs : int
        Runs that passed.
    with_samples, with_interval, with_dropped : int
        Number of those with samples, with a 95 % interval, and with dropped samples.
    samples : int
        Number of all their samples.
    """

    hardware: str
    timer: str
    cache: str
    stop_rule: str
    reference: str
    runs: int
    samples: int
    with_samples: int
    with_interval: int
    with_dropped: int


@dataclass(frozen=True)
class AuthorRank:
    """Ranking entry of one author on one device, with one timer and cache mode."""

    hardware: str
    timer: str
    cache: str
    author: str
    speedup: float
    definitions: int
    workloads: int


@dataclass(frozen=True)
class DatasetSummary:
    """Counts and rankings of a dataset.

    Attributes
    ----------
    definitions : tuple of DefinitionCounts
        In natural order of their names, including those that only traces name.
    statuses : mapping of str to int
        Number of traces of each status.
    rankings : tuple of AuthorRank
        By device, the best first. Devices are never compared with one another.
    unranked : mapping of str to str
        Definitions that do not count in the rankings, with the reason.
    timings : tuple of TimingCounts
        How latencies were measured, by device.
    """

    definitions: tuple[DefinitionCounts, ...]
    statuses: Mapping[str, int]
    rankings: tuple[AuthorRank, ...]
    unranked: Mapping[str, str]
    timings: tuple[TimingCounts, ...] = ()

    def totals(self) -> dict[str, int]:
        """Return the counts over all definitions."""
        names = ("solutions", "workloads", "traces", "passed", "failed")
        sums = {name: sum(getattr(one, name) for one in self.definitions) for name in names}
        return {"definitions": len(self.definitions), **sums}


def summarize(
    trace_set: TraceSet, selection: Selection, baseline_author: str = "baseline"
) -> DatasetSummary:
    """Count definitions, solutions and traces, and rank the authors.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    selection : Selection
        The definitions, op types and hardware to look at. Filters for solutions and authors are
        ignored, because a ranking needs them all.
    baseline_author : str
        Author whose solutions the others are compared with. Definitions without a solution by this
        author are counted but not ranked.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    results = collect_results(trace_set, selection)
    totals = Counter(one.definition for one in results)
    passes = Counter(one.definition for one in results if one.passed)
    op_types = {name: one.op_type for name, one in trace_set.definitions.items()}
    known = {
        name
        for name in (*trace_set.definitions, *trace_set.solutions)
        if selection.wants_definition(name, op_types.get(name, ""))
    }
    names = sorted(known.union(totals), key=natural_order)
    statuses = Counter(one.status for one in results)
    rankings: list[AuthorRank] = []
    unranked: dict[str, str] = {}
    for (hardware, conditions), runs in rankable(trace_set, results).items():
        summary = runs.summarize(baseline_author)
        unranked.update(summary.unranked)
        rankings += [
            AuthorRank(
                *(hardware, *conditions, author),
                *(score.avg_speedup, score.definitions, score.workloads),
            )
            for author, score in summary.rankings
        ]
    return DatasetSummary(
        definitions=tuple(
            DefinitionCounts(
                *(name, op_types.get(name, "")),
                solutions=len(trace_set.solutions.get(name, ())),
                workloads=len(trace_set.workload_uuids(name)),
                traces=totals[name],
                passed=passes[name],
                failed=totals[name] - passes[name],
            )
            for name in names
        ),
        statuses={one.value: statuses[one] for one in EvaluationStatus if statuses[one]},
        rankings=tuple(rankings),
        unranked=unranked,
        timings=tuple(_timings(results)),
    )


def _timings(results: Iterable[Result]) -> list[TimingCounts]:
    counts: dict[tuple[str, Clock], list[int]] = {}
    for one in results:
        if one.passed:
            count = counts.setdefault((one.hardware, one.clock), [0] * 5)
            count[0] += 1
            count[1] += one.sample_total
            count[2] += one.sample_total > 0
            count[3] += one.interval_ms is not None
            count[4] += one.dropped > 0
    return [TimingCounts(key[0], *key[1], *counts[key]) for key in sorted(counts)]

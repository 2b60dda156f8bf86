"""What there is in a dataset, and how its authors rank, device by device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus, ranking
from flashinfer_bench.report.results import Selection, collect_results, op_type_of, split_by_setting
from flashinfer_bench.report.scores import natural_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.run_source import Clock
    from flashinfer_bench.report.results import Result, Setting


@dataclass(frozen=True)
class DefinitionCounts:
    """What there is for one definition; ``solved`` says whether any solution ever passed."""

    definition: str
    op_type: str
    solutions: int
    workloads: int
    traces: int
    passed: int
    failed: int

    @property
    def solved(self) -> bool:
        """Whether any solution passed on any workload."""
        return self.passed > 0


@dataclass(frozen=True)
class TimingCounts:
    """How the latencies of passing runs were taken, and what is known of their errors.

    Attributes
    ----------
    hardware, timer, cache, stop_rule, reference : str
        The device, and what the traces tell of the clock; empty where they do not.
    runs : int
        Runs that passed.
    with_samples, with_interval, with_dropped : int
        Those among them with samples, with an interval of 95 %, and with samples that do not count.
    samples : int
        All their samples.
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
    """Place of one author among those measured on one device, with one timer and cache mode."""

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
        In natural order of their names, including those that only traces know.
    statuses : mapping of str to int
        Number of traces of each status.
    rankings : tuple of AuthorRank
        By device, the best first. Devices are never compared with one another.
    unranked : mapping of str to str
        Definitions that do not count in the rankings, with the reason.
    timings : tuple of TimingCounts
        How latencies were taken, by device.
    """

    definitions: tuple[DefinitionCounts, ...]
    statuses: Mapping[str, int]
    rankings: tuple[AuthorRank, ...]
    unranked: Mapping[str, str]
    baseline_author: str
    timings: tuple[TimingCounts, ...] = ()

    @property
    def traces(self) -> int:
        """Number of traces."""
        return sum(self.statuses.values())

    @property
    def passed(self) -> int:
        """Number of traces that passed."""
        return self.statuses.get(EvaluationStatus.PASSED.value, 0)

    def totals(self) -> dict[str, int]:
        """Return the counts over all definitions."""
        return {
            "definitions": len(self.definitions),
            "solutions": sum(one.solutions for one in self.definitions),
            "workloads": sum(one.workloads for one in self.definitions),
            "traces": self.traces,
            "passed": self.passed,
            "failed": self.traces - self.passed,
        }


def summarize(
    trace_set: TraceSet, selection: Selection, baseline_author: str = "baseline"
) -> DatasetSummary:
    """Count what there is and rank the authors.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    selection : Selection
        What to look at: definitions, op types and hardware; solutions and authors are not narrowed
        down, because a ranking needs them all.
    baseline_author : str
        Author whose solutions the others are compared with. Definitions without one of theirs are
        counted but not ranked.

    Raises
    ------
    UnknownNameError
        If the selection names what the dataset does not have.
    """
    results = collect_results(trace_set, selection)
    counts = Counter((one.definition, one.status.value) for one in results)
    known = {
        name
        for name in (*trace_set.definitions, *trace_set.solutions)
        if selection.wants_definition(name, op_type_of(trace_set, name))
    }
    names = sorted(known.union(one.definition for one in results), key=natural_order)
    statuses = {one.value: sum(counts[name, one.value] for name in names) for one in _STATUSES}
    rankings: list[AuthorRank] = []
    unranked: dict[str, str] = {}
    recorded = dict.fromkeys(one.definition for one in results)
    for (hardware, conditions), runs in rankable(trace_set, results).items():
        summary = runs.summarize(recorded, baseline_author)
        unranked.update(summary.unranked)
        rankings += [
            AuthorRank(
                *(hardware, *conditions, author),
                *(score.avg_speedup, score.n_definitions, score.n_workloads),
            )
            for author, score in summary.rankings
        ]
    return DatasetSummary(
        definitions=tuple(_counts(trace_set, name, counts) for name in names),
        statuses={name: count for name, count in statuses.items() if count},
        rankings=tuple(rankings),
        unranked=unranked,
        baseline_author=baseline_author,
        timings=tuple(_timings(results)),
    )


_STATUSES = tuple(EvaluationStatus)


def _counts(
    trace_set: TraceSet, name: str, counts: Mapping[tuple[str, str], int]
) -> DefinitionCounts:
    total = sum(counts[name, status.value] for status in _STATUSES)
    passed = counts[name, EvaluationStatus.PASSED.value]
    return DefinitionCounts(
        definition=name,
        op_type=op_type_of(trace_set, name),
        solutions=len(trace_set.solutions.get(name, ())),
        workloads=len(trace_set.workload_uuids(name)),
        traces=total,
        passed=passed,
        failed=total - passed,
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


def rankable(trace_set: TraceSet, results: Iterable[Result]) -> dict[Setting, ranking.Ranking]:
    """Return the rankings on each device with each timer and cache mode, which are not compared."""
    return {
        setting: ranking.Ranking(trace_set.solutions, ranking.digest(here).__getitem__)
        for setting, here in split_by_setting(results).items()
    }

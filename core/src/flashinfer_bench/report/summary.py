"""What there is in a dataset, and how its authors rank, device by device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report.devices import split_by_device
from flashinfer_bench.report.results import choose_runs, op_type_of
from flashinfer_bench.report.scores import natural_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.run_source import Clock, RunColumns
    from flashinfer_bench.report.results import Selection


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
    chosen = choose_runs(trace_set, selection)
    rankings, unranked = _rank(trace_set, chosen, baseline_author)
    statuses = {name: _statuses(columns) for name, columns in chosen.items()}
    names = _names(trace_set, selection, chosen)
    return DatasetSummary(
        definitions=tuple(_counts(trace_set, name, statuses.get(name, {})) for name in names),
        statuses=_total(statuses.values()),
        rankings=tuple(rankings),
        unranked=unranked,
        baseline_author=baseline_author,
        timings=tuple(_timings(chosen.values())),
    )


def _names(trace_set: TraceSet, selection: Selection, runs: Iterable[str]) -> list[str]:
    known = {*trace_set.definitions, *trace_set.solutions}
    wanted = {
        name for name in known if selection.wants_definition(name, op_type_of(trace_set, name))
    }
    return sorted({*wanted, *runs}, key=natural_order)


def _statuses(columns: RunColumns) -> dict[str, int]:
    # Not a Counter: to hash a member of an enumeration takes longer than to look for it.
    counts = ((status.value, columns.status.count(status)) for status in EvaluationStatus)
    return {name: count for name, count in counts if count}


def _total(statuses: Iterable[Mapping[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in statuses:
        counts.update(one)
    return {one.value: counts[one.value] for one in EvaluationStatus if counts[one.value]}


def _counts(trace_set: TraceSet, name: str, statuses: Mapping[str, int]) -> DefinitionCounts:
    total, passed = sum(statuses.values()), statuses.get(EvaluationStatus.PASSED.value, 0)
    return DefinitionCounts(
        definition=name,
        op_type=op_type_of(trace_set, name),
        solutions=len(trace_set.solutions.get(name, ())),
        workloads=len(trace_set.workload_uuids(name)),
        traces=total,
        passed=passed,
        failed=total - passed,
    )


def _rank(
    trace_set: TraceSet, chosen: Mapping[str, RunColumns], baseline_author: str
) -> tuple[list[AuthorRank], dict[str, str]]:
    rankings: list[AuthorRank] = []
    unranked: dict[str, str] = {}
    for (hardware, conditions), part in split_by_device(trace_set, chosen).items():
        summary = part.summary(baseline_author)
        unranked.update(summary.unranked)
        rankings += [
            AuthorRank(
                *(hardware, *conditions, author),
                *(score.avg_speedup, score.n_definitions, score.n_workloads),
            )
            for author, score in summary.rankings
        ]
    return rankings, unranked


def _timings(groups: Iterable[RunColumns]) -> list[TimingCounts]:
    counts: dict[tuple[str, Clock], list[int]] = {}
    for columns in groups:
        fields = (columns.hardware, columns.clock, columns.status, columns.sample_counts)
        ends = (columns.interval_ms, columns.dropped)
        for device, clock, status, samples, interval, dropped in zip(*fields, *ends, strict=True):
            if status is not EvaluationStatus.PASSED:
                continue
            count = counts.setdefault((device, clock), [0] * 5)
            count[0] += 1
            count[1] += samples
            count[2] += samples > 0
            count[3] += interval is not None
            count[4] += dropped > 0
    return [TimingCounts(key[0], *key[1], *counts[key]) for key in sorted(counts)]

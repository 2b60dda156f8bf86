"""What there is in a dataset, and how its authors rank, device by device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus, TraceSet
from flashinfer_bench.report.scores import natural_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import Trace
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
class AuthorRank:
    """Place of one author among those measured on one device."""

    hardware: str
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
    """

    definitions: tuple[DefinitionCounts, ...]
    statuses: Mapping[str, int]
    rankings: tuple[AuthorRank, ...]
    unranked: Mapping[str, str]
    baseline_author: str

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
    selection.check_names(trace_set)
    part = narrow(trace_set, selection)
    rankings, unranked = _rank(part, baseline_author)
    return DatasetSummary(
        definitions=tuple(_counts(part, name) for name in _names(part)),
        statuses=_statuses(trace for group in part.traces.values() for trace in group),
        rankings=tuple(rankings),
        unranked=unranked,
        baseline_author=baseline_author,
    )


def narrow(trace_set: TraceSet, selection: Selection) -> TraceSet:
    """Return the selected definitions with all that belongs to them, in memory.

    Traces from other hardware than the selected are left out.
    """

    def wanted(name: str) -> bool:
        definition = trace_set.definitions.get(name)
        return selection.wants_definition(name, definition.op_type if definition else "")

    traces = {
        name: [trace for trace in group if selection.wants_hardware(_hardware(trace))]
        for name, group in trace_set.traces.items()
        if wanted(name)
    }
    return TraceSet(
        definitions={name: d for name, d in trace_set.definitions.items() if wanted(name)},
        solutions={name: group for name, group in trace_set.solutions.items() if wanted(name)},
        workloads={name: group for name, group in trace_set.workloads.items() if wanted(name)},
        traces={name: group for name, group in traces.items() if group},
    )


def _hardware(trace: Trace) -> str:
    return trace.evaluation.environment.hardware if trace.evaluation is not None else ""


def _names(part: TraceSet) -> list[str]:
    return sorted({*part.definitions, *part.solutions, *part.traces}, key=natural_order)


def _statuses(traces: Iterable[Trace]) -> dict[str, int]:
    counts = Counter(trace.evaluation.status for trace in traces if trace.evaluation is not None)
    return {status.value: counts[status] for status in EvaluationStatus if counts[status]}


def _counts(part: TraceSet, name: str) -> DefinitionCounts:
    definition = part.definitions.get(name)
    statuses = _statuses(part.traces.get(name, ()))
    total, passed = sum(statuses.values()), statuses.get(EvaluationStatus.PASSED.value, 0)
    return DefinitionCounts(
        definition=name,
        op_type=definition.op_type if definition is not None else "",
        solutions=len(part.solutions.get(name, ())),
        workloads=len(part.workloads.get(name, ())),
        traces=total,
        passed=passed,
        failed=total - passed,
    )


def _rank(part: TraceSet, baseline_author: str) -> tuple[list[AuthorRank], dict[str, str]]:
    devices = {_hardware(trace) for group in part.traces.values() for trace in group}
    rankings: list[AuthorRank] = []
    unranked: dict[str, str] = {}
    for hardware in sorted(devices):
        summary = _on(part, hardware).summary(baseline_author=baseline_author)
        unranked.update(summary.unranked)
        rankings += [
            AuthorRank(hardware, author, score.avg_speedup, score.n_definitions, score.n_workloads)
            for author, score in summary.rankings
        ]
    return rankings, unranked


def _on(part: TraceSet, hardware: str) -> TraceSet:
    traces = {
        name: [trace for trace in group if _hardware(trace) == hardware]
        for name, group in part.traces.items()
    }
    return TraceSet(
        definitions={name: d for name, d in part.definitions.items() if name in traces},
        solutions={name: group for name, group in part.solutions.items() if name in traces},
        traces=traces,
    )

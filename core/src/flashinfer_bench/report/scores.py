"""Results of a solution over its workloads as one line, and which solution is the best."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report.statistics import geometric_mean, median

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.report.results import Result


@dataclass(frozen=True)
class SolutionScore:
    """How one solution did on one device.

    Attributes
    ----------
    workloads : int
        Workloads on which it was evaluated.
    passed : int
        Workloads on which it passed.
    statuses : mapping
        Number of workloads of each status, in the order of `EvaluationStatus`, without zeros.
    median_latency_ms, mean_latency_ms : float or None
        Median and geometric mean over the workloads that passed.
    speedup, min_speedup, max_speedup : float or None
        Against the definition's reference: geometric mean and extremes over the same workloads.
    max_absolute_error : float or None
        The largest over all workloads for which there is one.
    """

    definition: str
    op_type: str
    solution: str
    author: str
    language: str
    hardware: str
    workloads: int
    passed: int
    statuses: Mapping[str, int] = field(default_factory=dict)
    median_latency_ms: Optional[float] = None
    mean_latency_ms: Optional[float] = None
    speedup: Optional[float] = None
    min_speedup: Optional[float] = None
    max_speedup: Optional[float] = None
    max_absolute_error: Optional[float] = None

    @property
    def all_passed(self) -> bool:
        """Whether it passed on every workload on which it was evaluated."""
        return self.passed == self.workloads


def count_statuses(results: Iterable[Result]) -> dict[str, int]:
    """Count the statuses, in the order of `EvaluationStatus` and without zeros."""
    counts = Counter(result.status for result in results)
    return {status.value: counts[status] for status in EvaluationStatus if counts[status]}


def score_solutions(results: Iterable[Result]) -> list[SolutionScore]:
    """Sum the results up for each definition, solution and device.

    Parameters
    ----------
    results : iterable of Result
        At most one for each workload, as `latest_results` gives them.

    Returns
    -------
    list of SolutionScore
        By definition and device, the best first.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.definition, result.hardware, result.solution), []).append(result)
    return sorted(map(_score, groups.values()), key=_rank)


def _score(results: Sequence[Result]) -> SolutionScore:
    first = results[0]
    latencies = [r.latency_ms for r in results if r.latency_ms is not None]
    speedups = [r.speedup for r in results if r.speedup is not None]
    errors = [r.max_absolute_error for r in results if r.max_absolute_error is not None]
    return SolutionScore(
        definition=first.definition,
        op_type=first.op_type,
        solution=first.solution,
        author=first.author,
        language=first.language,
        hardware=first.hardware,
        workloads=len(results),
        passed=sum(result.passed for result in results),
        statuses=count_statuses(results),
        median_latency_ms=median(latencies),
        mean_latency_ms=geometric_mean(latencies),
        speedup=geometric_mean(speedups),
        min_speedup=min(speedups, default=None),
        max_speedup=max(speedups, default=None),
        max_absolute_error=_largest(errors),
    )


def _largest(errors: Sequence[float]) -> Optional[float]:
    # NaN is the worst error that there is; max() would lose it, depending on its place.
    broken = [error for error in errors if error != error]
    return broken[0] if broken else max(errors, default=None)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sorting key under which ``h512`` comes before ``h1024``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    # Every part as (number, text), so that numbers and words can be compared with one another.
    return [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]


def _rank(score: SolutionScore) -> tuple[Any, ...]:
    latency = score.mean_latency_ms
    return (
        natural_order(score.definition),
        score.hardware,
        not score.all_passed,
        -score.passed,
        latency if latency is not None else float("inf"),
        score.solution,
    )


@dataclass(frozen=True)
class Best:
    """The best solution of a definition on one device.

    Attributes
    ----------
    score : SolutionScore
        Of the best solution.
    tried : int
        Number of solutions evaluated on that device.
    runner_up : SolutionScore or None
        The next best that passed on as many workloads, if there is one.
    """

    score: SolutionScore
    tried: int
    runner_up: Optional[SolutionScore] = None

    @property
    def lead(self) -> Optional[float]:
        """Latency of the runner-up over that of the best; None without a runner-up."""
        if self.runner_up is None:
            return None
        mine, theirs = self.score.mean_latency_ms, self.runner_up.mean_latency_ms
        return theirs / mine if mine and theirs else None


def best_solutions(scores: Iterable[SolutionScore]) -> list[Best]:
    """Choose the best solution for each definition and device.

    Only a solution that passed wherever it was evaluated can be the best. Among those, the one that
    passed on the most workloads wins, then the lowest geometric mean of the latencies: latency and
    not speed-up, because the reference it is compared with may have been timed on another day.

    Parameters
    ----------
    scores : iterable of SolutionScore
        As `score_solutions` returns them.

    Returns
    -------
    list of Best
        By definition and device; a definition that nobody solved is left out.
    """
    groups: dict[tuple[str, str], list[SolutionScore]] = {}
    for score in sorted(scores, key=_rank):
        groups.setdefault((score.definition, score.hardware), []).append(score)
    return [best for best in map(_best, groups.values()) if best is not None]


def _best(ranked: Sequence[SolutionScore]) -> Optional[Best]:
    eligible = [score for score in ranked if score.all_passed and score.passed]
    if not eligible:
        return None
    rivals = [score for score in eligible[1:] if score.passed == eligible[0].passed]
    return Best(eligible[0], len(ranked), rivals[0] if rivals else None)

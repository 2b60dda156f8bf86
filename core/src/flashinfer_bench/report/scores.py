"""Results of a solution over its workloads as one line, and which solution is the best."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report.conditions import split_by_setting
from flashinfer_bench.report.intervals import (
    Measured,
    latency_of,
    mean_of,
    rank_labels,
    ranks,
    ratio_of,
    speedup_of,
)
from flashinfer_bench.report.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.data.run_source import Ends
    from flashinfer_bench.report.results import Result


@dataclass(frozen=True)
class SolutionScore:
    """How one solution did on one device, with one timer and cache mode.

    Attributes
    ----------
    timer, cache : str
        What it was timed with; empty where traces do not tell it.
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
    interval_ms, speedup_interval : (float, float) or None
        Where the two geometric means lie with a confidence of 95 %; None if one of the workloads
        that passed has no interval.
    samples, dropped : int
        Number of all samples, and of those among them that do not count.
    stop_rules : tuple of str
        What decided how many samples were taken.
    without_interval : int
        Workloads that passed and have no interval of the latency.
    references : mapping of str to int
        Workloads that passed by when their reference was timed: ``beside`` the solution, ``before``
        it, ``not``, or ``unknown``.
    rank : str or None
        Place by latency among those that passed on as many workloads, everywhere and the most of
        all: ``1``, or ``=2`` where several cannot be told apart. None for the others.
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
    timer: str = ""
    cache: str = ""
    interval_ms: Optional[Ends] = None
    speedup_interval: Optional[Ends] = None
    samples: int = 0
    dropped: int = 0
    stop_rules: tuple[str, ...] = ()
    without_interval: int = 0
    references: Mapping[str, int] = field(default_factory=dict)
    rank: Optional[str] = None

    @property
    def latency(self) -> Optional[Measured]:
        """The geometric mean of the latencies with its interval; None if nothing passed."""
        mean = self.mean_latency_ms
        return None if mean is None else Measured(mean, self.interval_ms)

    @property
    def reference_speedup(self) -> Optional[Measured]:
        """The speed-up over the reference with its interval; None if that was not timed."""
        return None if self.speedup is None else Measured(self.speedup, self.speedup_interval)

    @property
    def is_ranked(self) -> bool:
        """Whether it has a place in the ranking."""
        return self.rank is not None

    @property
    def all_passed(self) -> bool:
        """Whether it passed on every workload on which it was evaluated."""
        return self.passed == self.workloads


def count_statuses(results: Iterable[Result]) -> dict[str, int]:
    """Count the statuses, in the order of `EvaluationStatus` and without zeros."""
    counts = Counter(result.status for result in results)
    return {status.value: counts[status] for status in EvaluationStatus if counts[status]}


def score_solutions(results: Iterable[Result]) -> list[SolutionScore]:
    """Sum the results up for each definition, solution and device, timer and cache mode.

    Parameters
    ----------
    results : iterable of Result
        At most one for each workload and timer, as `latest_results` gives them.

    Returns
    -------
    list of SolutionScore
        By definition, device, timer and cache mode, the best first.
    """
    definitions: dict[str, list[Result]] = {}
    for result in results:
        definitions.setdefault(result.definition, []).append(result)
    scores: list[SolutionScore] = []
    for here in definitions.values():
        for (_, conditions), group in split_by_setting(here).items():
            scores += _ranked([_score(one, conditions) for one in _by_solution(group)])
    return sorted(scores, key=_rank)


def _by_solution(results: Iterable[Result]) -> Iterable[list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.solution, []).append(result)
    return groups.values()


def _ranked(scores: Sequence[SolutionScore]) -> list[SolutionScore]:
    """Return the scores of one definition and setting with their ranks."""
    eligible = [one for one in scores if one.all_passed and one.latency is not None]
    most = max((one.passed for one in eligible), default=0)
    rivals = [one for one in eligible if one.passed == most]
    labels = rank_labels(ranks([one.latency for one in rivals if one.latency is not None]))
    known = {one.solution: label for one, label in zip(rivals, labels, strict=True)}
    return [replace(one, rank=known.get(one.solution)) for one in scores]


def _score(results: Sequence[Result], conditions: tuple[str, str]) -> SolutionScore:
    first = results[0]
    passed = [one for one in results if one.passed]
    latencies = [r.latency_ms for r in results if r.latency_ms is not None]
    speedups = [r.speedup for r in results if r.speedup is not None]
    errors = [r.max_absolute_error for r in results if r.max_absolute_error is not None]
    latency = mean_of([one for one in map(latency_of, passed) if one is not None])
    speedup = mean_of([one for one in map(speedup_of, passed) if one is not None])
    if len([one for one in passed if one.latency_ms]) < len(latencies):
        latency = None  # a latency of 0 has no logarithm
    return SolutionScore(
        definition=first.definition,
        op_type=first.op_type,
        solution=first.solution,
        author=first.author,
        language=first.language,
        hardware=first.hardware,
        workloads=len(results),
        passed=len(passed),
        statuses=count_statuses(results),
        median_latency_ms=median(latencies),
        mean_latency_ms=latency.value if latency is not None else None,
        speedup=speedup.value if speedup is not None else None,
        min_speedup=min(speedups, default=None),
        max_speedup=max(speedups, default=None),
        max_absolute_error=_largest(errors),
        timer=conditions[0],
        cache=conditions[1],
        interval_ms=latency.ends if latency is not None else None,
        speedup_interval=speedup.ends if speedup is not None else None,
        **_of_samples(passed),
    )


def _of_samples(passed: Sequence[Result]) -> dict[str, Any]:
    """Return the fields of a score that tell how its samples were taken."""
    references = Counter(one.clock.reference or "unknown" for one in passed)
    return {
        "samples": sum(one.sample_total for one in passed),
        "dropped": sum(one.dropped for one in passed),
        "stop_rules": tuple(sorted({one.clock.stop_rule for one in passed} - {""})),
        "without_interval": sum(one.interval_ms is None for one in passed),
        "references": dict(sorted(references.items())),
    }


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
        score.timer,
        score.cache,
        not score.all_passed,
        -score.passed,
        latency if latency is not None else float("inf"),
        score.solution,
    )


@dataclass(frozen=True)
class Best:
    """The best solution of a definition on one device, with one timer and cache mode.

    Attributes
    ----------
    score : SolutionScore
        Of the best solution.
    tried : int
        Number of solutions evaluated on that device.
    runner_up : SolutionScore or None
        The next best that passed on as many workloads, if there is one.
    ranked : tuple of SolutionScore
        All that have a rank, the best first.
    """

    score: SolutionScore
    tried: int
    runner_up: Optional[SolutionScore] = None
    ranked: tuple[SolutionScore, ...] = ()

    @property
    def lead(self) -> Optional[float]:
        """Latency of the runner-up over that of the best; None without a runner-up."""
        found = self.measured_lead
        return found.value if found is not None else None

    @property
    def measured_lead(self) -> Optional[Measured]:
        """The lead with its interval."""
        mine = self.score.latency
        theirs = self.runner_up.latency if self.runner_up is not None else None
        return ratio_of(theirs, mine) if mine is not None and theirs is not None else None

    @property
    def ties(self) -> tuple[SolutionScore, ...]:
        """Others whose intervals overlap with that of the best: they may be as fast, or faster."""
        return tuple(one for one in self.ranked[1:] if one.rank == self.score.rank)


def best_solutions(scores: Iterable[SolutionScore]) -> list[Best]:
    """Choose the best solution for each definition and device.

    Only a solution that passed wherever it was evaluated can be the best. Among those, the one that
    passed on the most workloads wins, then the lowest geometric mean of the latencies: latency and
    not speed-up, because the reference it is compared with may have been timed on another day. Only
    what was timed with the same timer and cache mode is compared.

    Parameters
    ----------
    scores : iterable of SolutionScore
        As `score_solutions` returns them.

    Returns
    -------
    list of Best
        By definition, device, timer and cache mode; a definition that nobody solved is left out.
    """
    groups: dict[tuple[str, ...], list[SolutionScore]] = {}
    for score in sorted(scores, key=_rank):
        key = (score.definition, score.hardware, score.timer, score.cache)
        groups.setdefault(key, []).append(score)
    return [best for best in map(_best, groups.values()) if best is not None]


def _best(ranked: Sequence[SolutionScore]) -> Optional[Best]:
    eligible = [score for score in ranked if score.all_passed and score.passed]
    if not eligible:
        return None
    rivals = [score for score in eligible[1:] if score.passed == eligible[0].passed]
    in_rank = tuple(score for score in eligible if score.is_ranked)
    return Best(eligible[0], len(ranked), rivals[0] if rivals else None, in_rank)

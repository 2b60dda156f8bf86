"""Scores of solutions over their workloads, and the best of them."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_report.results import grouped, split_by_setting
from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fib_report.results import Result
    from flashinfer_bench.data.run_source import Ends

# ------------------------------------------------------------------ figures with their intervals
#
# Intervals of latencies, ratios and means over workloads are combined in logarithms, end by end:
# Donner & Zou, Closed-form confidence intervals for functions of the normal mean and standard
# deviation (2012). They come from separate runs, so that their errors are independent.


def geometric_mean(values: Sequence[float]) -> Optional[float]:
    """Return the geometric mean, the right mean for ratios.

    None if there are no values, or if one is not a positive finite number.
    """
    if not values or any(not 0.0 < value < math.inf for value in values):
        return None
    if len(values) == 1:
        return values[0]  # unchanged, without rounding by the logarithm
    return math.exp(math.fsum(map(math.log, values)) / len(values))


class Measured(NamedTuple):
    """A figure and its 95 % interval, if that is known.

    Attributes
    ----------
    value : float
        The figure, positive: a latency in milliseconds, or a ratio.
    ends : (float, float) or None
        Both ends of the interval.
    """

    value: float
    ends: Optional[Ends] = None

    @property
    def low(self) -> float:
        """The lower end; the figure itself where no interval is known."""
        return self.ends[0] if self.ends is not None else self.value

    @property
    def high(self) -> float:
        """The upper end; the figure itself where no interval is known."""
        return self.ends[1] if self.ends is not None else self.value


def latency_of(result: Result) -> Optional[Measured]:
    """Return the latency of a result; None if it has none."""
    return Measured(result.latency_ms, result.interval_ms) if result.latency_ms else None


def speedup_of(result: Result) -> Optional[Measured]:
    """Return the speed-up over the reference; None if the reference was not timed."""
    return Measured(result.speedup, result.speedup_interval) if result.speedup else None


def ratio_of(above: Measured, below: Measured) -> Measured:
    """Return the ratio of two figures of independent runs.

    Like `flashinfer_bench.stats.intervals.ratio_interval`, but from both intervals instead of both
    samples. Without an interval unless both have one.
    """
    ratio = above.value / below.value
    if above.ends is None or below.ends is None:
        return Measured(ratio)
    less = math.hypot(_log(above.low / above.value), _log(below.high / below.value))
    more = math.hypot(_log(above.high / above.value), _log(below.low / below.value))
    return Measured(ratio, (ratio * math.exp(-less), ratio * _exp(more)))


def mean_of(figures: Iterable[Measured]) -> Optional[Measured]:
    """Return the geometric mean of independent figures; without an interval unless all have one.

    None if there are none, or if one is not a positive finite number.
    """
    given = list(figures)
    mean = geometric_mean([one.value for one in given])
    if mean is None or any(one.ends is None for one in given):
        return None if mean is None else Measured(mean)
    less = math.hypot(*(_log(one.low / one.value) for one in given)) / len(given)
    more = math.hypot(*(_log(one.high / one.value) for one in given)) / len(given)
    return Measured(mean, (mean * math.exp(-less), mean * _exp(more)))


def ranks(figures: Sequence[Measured]) -> list[int]:
    """Return the rank of each latency: one more than the number of definitely smaller ones.

    Latencies whose intervals overlap are not distinguished. Of three in a chain (the first overlaps
    the second, and the second the third) the third ranks behind the first only.

    Parameters
    ----------
    figures : sequence of Measured
        In any order.
    """
    highs = sorted(one.high for one in figures)
    return [1 + bisect_left(highs, one.low) for one in figures]


def rank_labels(places: Sequence[int]) -> list[str]:
    """Return ranks as text: ``1``, or ``=2`` where several share one."""
    counts = Counter(places)
    return [f"={one}" if counts[one] > 1 else str(one) for one in places]


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


# ------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class SolutionScore:
    """Results of one solution on one device, with one timer and cache mode.

    Attributes
    ----------
    workloads : int
        Workloads on which it was evaluated.
    passed : int
        Workloads on which it passed.
    statuses : mapping
        Number of workloads of each status, in the order of `EvaluationStatus`, without zeros.
    latency : Measured or None
        Geometric mean over the workloads that passed; None if nothing passed.
    speedup : Measured or None
        Speed-up over the definition's reference: geometric mean over the same workloads.
    min_speedup, max_speedup : float or None
        Its extremes.
    max_absolute_error : float or None
        The largest over all workloads that have one.
    timer, cache : str
        What it was timed with; empty if traces do not say.
    samples, dropped : int
        Number of all samples, and of the dropped ones among them.
    stop_rules : tuple of str
        The stopping rules that decided how many samples were taken.
    without_interval : int
        Workloads that passed without an interval of the latency.
    disputed, replayable, loose : int
        Workloads that passed and are disputed, replayable, or passed by a loose tolerance only.
    references : mapping of str to int
        Number of workloads that passed, by when their reference was timed: ``beside`` (alternating
        with the solution), ``before`` it, ``not``, or ``unknown``.
    rank : str or None
        Rank by latency among the solutions that passed everywhere, on the most workloads of all:
        ``1``, or ``=2`` where several are tied. None for the others.
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
    latency: Optional[Measured] = None
    speedup: Optional[Measured] = None
    min_speedup: Optional[float] = None
    max_speedup: Optional[float] = None
    max_absolute_error: Optional[float] = None
    timer: str = ""
    cache: str = ""
    samples: int = 0
    dropped: int = 0
    stop_rules: tuple[str, ...] = ()
    without_interval: int = 0
    disputed: int = 0
    replayable: int = 0
    loose: int = 0
    references: Mapping[str, int] = field(default_factory=dict)
    rank: Optional[str] = None

    @property
    def key(self) -> tuple[str, ...]:
        """Definition, device, timer, cache mode and solution, as of its results."""
        return self.definition, self.hardware, self.timer, self.cache, self.solution

    @property
    def all_passed(self) -> bool:
        """Whether it passed on every workload on which it was evaluated."""
        return self.passed == self.workloads

    @property
    def can_rank(self) -> bool:
        """Whether it passed everywhere, without disputed latencies."""
        return self.all_passed and self.passed > 0 and not self.disputed


def score_solutions(results: Iterable[Result]) -> list[SolutionScore]:
    """Aggregate results for each definition, solution, device, timer and cache mode.

    Parameters
    ----------
    results : iterable of Result
        At most one for each workload and timer, as `latest_results` returns them.

    Returns
    -------
    list of SolutionScore
        By definition, device, timer and cache mode, the best first.
    """
    scores: list[SolutionScore] = []
    for here in grouped(results, "definition").values():
        for (_, conditions), group in split_by_setting(here).items():
            solutions = grouped(group, "solution").values()
            scores += _ranked([_score(one, *conditions) for one in solutions])
    return sorted(scores, key=_order)


def _score(results: Sequence[Result], timer: str, cache: str) -> SolutionScore:
    first = results[0]
    passed = [one for one in results if one.passed]
    speedups = [one for one in map(speedup_of, passed) if one is not None]
    errors = [one.max_absolute_error for one in results if one.max_absolute_error is not None]
    timed = [one for one in map(latency_of, passed) if one is not None]
    statuses = Counter(one.status for one in results)
    references = Counter(one.clock.reference or "unknown" for one in passed)
    return SolutionScore(
        definition=first.definition,
        op_type=first.op_type,
        solution=first.solution,
        author=first.author,
        language=first.language,
        hardware=first.hardware,
        workloads=len(results),
        passed=len(passed),
        statuses={one.value: statuses[one] for one in EvaluationStatus if statuses[one]},
        # A latency of 0 has no logarithm.
        latency=mean_of(timed) if len(timed) == len(passed) else None,
        speedup=mean_of(speedups),
        min_speedup=min((one.value for one in speedups), default=None),
        max_speedup=max((one.value for one in speedups), default=None),
        # NaN is the worst error; max() alone would lose it, depending on its position.
        max_absolute_error=max(errors, key=lambda error: (error != error, error), default=None),
        timer=timer,
        cache=cache,
        samples=sum(one.sample_total for one in passed),
        dropped=sum(one.dropped for one in passed),
        stop_rules=tuple(sorted({one.clock.stop_rule for one in passed} - {""})),
        without_interval=sum(one.interval_ms is None for one in passed),
        disputed=sum(one.disputed for one in passed),
        replayable=sum(one.replayable for one in passed),
        loose=sum(one.loose for one in passed),
        references=dict(sorted(references.items())),
    )


def _ranked(scores: Sequence[SolutionScore]) -> list[SolutionScore]:
    """Return the scores of one definition and setting with their ranks."""
    eligible = [one for one in scores if one.can_rank and one.latency is not None]
    most = max((one.passed for one in eligible), default=0)
    rivals = [one for one in eligible if one.passed == most]
    labels = rank_labels(ranks([one.latency for one in rivals if one.latency is not None]))
    known = {one.solution: label for one, label in zip(rivals, labels, strict=True)}
    return [replace(one, rank=known.get(one.solution)) for one in scores]


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sorting key under which ``h512`` comes before ``h1024``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    # Each part is (number, text), so that numbers and words can be compared.
    return [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]


def _order(score: SolutionScore) -> tuple[Any, ...]:
    latency = score.latency.value if score.latency is not None else math.inf
    return (
        *(natural_order(score.definition), *score.key[1:-1]),
        *(not score.can_rank, not score.all_passed, -score.passed, latency, score.solution),
    )


@dataclass(frozen=True)
class Best:
    """The best solution of a definition on one device, with one timer and cache mode.

    Attributes
    ----------
    score : SolutionScore
        Score of the best solution.
    tried : int
        Number of solutions evaluated on that device.
    runner_up : SolutionScore or None
        The next best with as many workloads, if there is one.
    ranked : tuple of SolutionScore
        All ranked solutions, the best first.
    """

    score: SolutionScore
    tried: int
    runner_up: Optional[SolutionScore] = None
    ranked: tuple[SolutionScore, ...] = ()

    @property
    def measured_lead(self) -> Optional[Measured]:
        """Latency of the runner-up over that of the best; None without a runner-up."""
        mine = self.score.latency
        theirs = self.runner_up.latency if self.runner_up is not None else None
        return ratio_of(theirs, mine) if mine is not None and theirs is not None else None

    @property
    def ties(self) -> tuple[SolutionScore, ...]:
        """Others whose intervals overlap that of the best: they may be as fast, or faster."""
        return tuple(one for one in self.ranked[1:] if one.rank == self.score.rank)


def best_solutions(scores: Iterable[SolutionScore]) -> list[Best]:
    """Choose the best solution for each definition and device.

    Only solutions that passed wherever they were evaluated are ranked. Of those with the most
    workloads, the one with the lowest geometric mean latency wins: latency and not speed-up,
    because references may have been timed on different days. Only results with the same timer and
    cache mode are compared.

    Parameters
    ----------
    scores : iterable of SolutionScore
        As `score_solutions` returns them.

    Returns
    -------
    list of Best
        By definition, device, timer and cache mode; unsolved definitions are left out.
    """
    groups: dict[tuple[str, ...], list[SolutionScore]] = {}
    for score in sorted(scores, key=_order):
        groups.setdefault(score.key[:-1], []).append(score)
    found = []
    for group in groups.values():
        eligible = [one for one in group if one.can_rank]
        if eligible:
            rivals = [one for one in eligible[1:] if one.passed == eligible[0].passed]
            in_rank = tuple(one for one in eligible if one.rank is not None)
            found.append(Best(eligible[0], len(group), rivals[0] if rivals else None, in_rank))
    return found

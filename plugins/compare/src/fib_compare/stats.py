"""Tests whether one solution is faster than another, over pairs of fresh processes.

Two processes of the same program differ, for example in memory layout and in the load of the
machine. Calls of one process share these effects, so they are not independent, and more calls do
not reduce them (Kalibera & Jones, Rigorous benchmarking in reasonable time, 2013). Therefore a
launch, which is one pair of fresh processes, counts as one observation, and Student's t accounts
for the small number of launches.

Launches are added until the verdict is clear. Repeated testing would find differences by chance,
so alpha is spent over planned looks, in equal parts (Lan & DeMets, Discrete sequential boundaries
for clinical trials, 1983; the linear spending of Kim & DeMets, 1987). The looks are combined by
Bonferroni's inequality rather than by an integral over their joint normal distribution: four
launches are not normally distributed, and these p-values are valid at every level, as Holm's
method requires. Intervals are repeated confidence intervals (Jennison & Turnbull, 1989), which
hold at all looks together.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.distributions import normal_quantile, t_quantile, two_sided_p
from flashinfer_bench.stats.intervals import Interval, median_interval
from flashinfer_bench.stats.samples import require_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOKS = (4, 8, 12, 16, 20, 24)
"""Numbers of launches after which `enough` tests them. Each look spends an equal part of alpha."""

PROCESS_SPREAD = 0.01
"""Assumed difference of the medians of two processes of one program, as a standard deviation of
logarithms. Runs that were not interleaved differ by at least as much."""

_TRIMMED = 0.2
"""Share of launches trimmed at either end, from eight on, as in Wilcox, Introduction to robust
estimation and hypothesis testing (2012). On busy machines a fifth of them are disturbed."""

_FEWEST_TO_TRIM = 8


class Verdict(str, Enum):
    """How the candidate compares with the baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Launch:
    """One pair of fresh processes; their calls alternate in ABBA order.

    Attributes
    ----------
    baseline, candidate : tuple of float
        Latencies in the same unit; those with the same index form a pair.
    candidate_first : bool
        Whether the candidate was called first in the first, third, ... pair. In the others the
        order is reversed.
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    candidate_first: bool = False


@dataclass(frozen=True)
class Effect:
    """The logarithm of a ratio, its standard error, and degrees of freedom of that."""

    log: float
    error: float
    freedom: float

    def interval(self, alpha: float, spent: float = 1.0) -> Interval:
        """Return the interval of the ratio at the spent part of alpha."""
        estimate = math.exp(self.log)
        if math.isinf(self.error):
            return Interval(estimate, 0.0, math.inf, 1 - alpha)
        reach = self.error * t_quantile(1 - alpha * spent, self.freedom)
        return Interval(estimate, math.exp(self.log - reach), math.exp(self.log + reach), 1 - alpha)

    def p_value(self, spent: float = 1.0) -> float:
        """Return the two-sided p-value, divided by the spent part of alpha."""
        if math.isinf(self.error):
            return 1.0
        if self.error == 0:
            return 1.0 if self.log == 0 else 0.0
        return min(1.0, two_sided_p(self.log / self.error, self.freedom) / spent)

    def p_same(self, min_effect: float, spent: float = 1.0) -> float:
        """Return the p-value of a difference of `min_effect` or more, by two one-sided tests.

        By Schuirmann, A comparison of the two one-sided tests procedure and the power approach
        (1987): the larger of both p-values. It is at most alpha if the interval at 1 - 2 alpha,
        such as 90 % for 5 %, is within the effect.
        """
        room = math.log1p(min_effect) - abs(self.log)
        if math.isinf(self.error) or room < 0:
            return 1.0
        if self.error == 0:
            return 0.0
        return min(1.0, two_sided_p(room / self.error, self.freedom) / 2 / spent)


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline.

    Attributes
    ----------
    effect : Effect
        The logarithm of the ratio, with its error.
    spent : float
        Share of alpha that this look could spend.
    launches, pairs : int
        Number of launches and pairs; 0 pairs for unpaired samples.
    ratio : Interval
        Latency of the candidate over that of the baseline: above 1 is slower. 0 to infinity if
        there is only one launch.
    p_value : float
        Probability of a ratio so far from 1 if both were equal, adjusted for the looks.
    p_same : float
        Probability of a ratio so close to 1 if the difference were the smallest that counts, or
        more; adjusted for the looks.
    verdict : Verdict
        By `decide`.
    """

    effect: Effect
    spent: float
    launches: int
    pairs: int
    ratio: Interval
    p_value: float
    p_same: float
    verdict: Verdict


def decide(
    estimate: float, p_value: float, p_same: float, *, min_effect: float, alpha: float
) -> Verdict:
    """Return the verdict on a ratio of candidate over baseline.

    SLOWER or FASTER if the test is significant and the difference is more than `min_effect`. SAME
    if the test is significant and the difference is smaller, or if the test of equivalence is
    significant. AMBIGUOUS otherwise: more launches are needed.

    Parameters
    ----------
    estimate : float
        The ratio.
    p_value : float
        P-value of a ratio of 1, adjusted for all looks and tests.
    p_same : float
        P-value of a difference of `min_effect` or more, adjusted for all looks.
    min_effect : float
        Smallest relative difference that counts: a ratio of 1 + e for slower, 1 / (1 + e) for
        faster.
    alpha : float
        Probability of a false alarm, and of calling different solutions the same.

    Raises
    ------
    DataError
        If `min_effect` is negative or `alpha` not in (0, 1).
    """
    if not 0 <= min_effect < math.inf:
        raise DataError(f"min_effect is {min_effect!r}; it must be 0 or more, such as 0.01 for 1 %")
    if not 0 < alpha < 1:
        raise DataError(f"alpha is {alpha!r}; it must be between 0 and 1, such as 0.05")
    most = 1 + min_effect
    if p_value <= alpha:
        if estimate > most:
            return Verdict.SLOWER
        return Verdict.FASTER if estimate < 1 / most else Verdict.SAME
    return Verdict.SAME if p_same <= alpha else Verdict.AMBIGUOUS


def compare_launches(
    launches: Sequence[Launch],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    capped: bool = False,
) -> Comparison:
    """Compare two solutions over pairs of fresh processes.

    The effect of the order of calls is estimated over all launches and removed. Each launch then
    contributes the median of the log ratios of its pairs. The result is the trimmed mean of these,
    with the t test of Tukey & McLaughlin (1963).

    Parameters
    ----------
    launches : sequence of Launch
        At least one. One launch gives no verdict, two or three rarely do.
    min_effect : float
        Smallest relative difference that counts: 0.01 for 1 %.
    alpha : float
        Probability of a false alarm.
    capped : bool
        Whether the launches ended for another reason than `enough`, such as time. Then the last
        look spends the rest of alpha.

    Raises
    ------
    DataError
        If a sample is not a positive latency, the sides differ in number, or there are no launches.
    """
    effects = _effects_of(launches)
    if not effects:
        raise DataError("no launches to compare; at least one is needed")
    spent = _spent(len(launches), capped)
    pairs = sum(len(launch.baseline) for launch in launches)
    return _compared(_trimmed(effects), min_effect, alpha, len(launches), pairs, spent)


def _compared(
    effect: Effect,
    min_effect: float,
    alpha: float,
    launches: int = 1,
    pairs: int = 0,
    spent: float = 1.0,
) -> Comparison:
    ratio, p_value = effect.interval(alpha, spent), effect.p_value(spent)
    p_same = effect.p_same(min_effect, spent)
    verdict = decide(ratio.estimate, p_value, p_same, min_effect=min_effect, alpha=alpha)
    return Comparison(effect, spent, launches, pairs, ratio, p_value, p_same, verdict)


def _spent(count: int, capped: bool) -> float:
    """Return the share of alpha for a look after `count` launches."""
    if not capped and count < LOOKS[-1]:
        return 1 / len(LOOKS)
    return 1 - min(bisect_left(LOOKS, count), len(LOOKS) - 1) / len(LOOKS)


def _effects_of(launches: Sequence[Launch]) -> list[float]:
    """Return the log ratio of each launch, without the effect of the order of calls.

    The median of all pairs is more robust than that of blocks of two, which are disturbed if either
    of their pairs is, but it requires removing the effect of the order. That effect is the same in
    all launches, so estimating it over all of them is more precise.
    """
    logs = [_logs_of(launch, f"launches[{i}]") for i, launch in enumerate(launches)]
    found = [_order_of(*one) for one in zip(launches, logs, strict=True) if len(one[1]) > 1]
    order = median(found) if found else 0.0
    return [
        median([log - _sign(launch, place) * order for place, log in enumerate(each)])
        for launch, each in zip(launches, logs, strict=True)
    ]


def _sign(launch: Launch, place: int) -> int:
    """Return 1 if the baseline was called first in a pair, else -1."""
    return -1 if bool(place % 2) != launch.candidate_first else 1


def _order_of(launch: Launch, logs: Sequence[float]) -> float:
    """Return how much larger the log ratio is if the baseline was called first."""
    whole = len(logs) // 2 * 2
    even, odd = median(logs[:whole:2]), median(logs[1:whole:2])
    return _sign(launch, 0) * (even - odd) / 2


def _logs_of(launch: Launch, what: str) -> list[float]:
    """Return the log ratio of each pair."""
    sides = {
        name: require_samples(samples, f"{what}.{name}")
        for name, samples in (("baseline", launch.baseline), ("candidate", launch.candidate))
    }
    for name, samples in sides.items():
        if 0 in samples:
            raise DataError(f"{what}.{name}[{samples.index(0)}] is 0; it must be positive")
    before, after = sides.values()
    if len(before) != len(after):
        raise DataError(f"{what} has {len(before)} baseline and {len(after)} candidate samples")
    return [math.log(b / a) for a, b in zip(before, after, strict=True)]


def _trimmed(effects: Sequence[float]) -> Effect:
    """Return the trimmed mean of the launches with its standard error."""
    count = len(effects)
    cut = int(_TRIMMED * count) if count >= _FEWEST_TO_TRIM else 0
    ordered = sorted(effects)
    kept = ordered[cut : count - cut]
    middle = math.fsum(kept) / len(kept)
    if count == 1:
        return Effect(middle, math.inf, 1.0)
    drawn_in = [ordered[cut]] * cut + kept + [ordered[-1 - cut]] * cut
    centre = math.fsum(drawn_in) / count
    variance = math.fsum((value - centre) ** 2 for value in drawn_in) / (count - 1)
    share = len(kept) / count
    return Effect(middle, math.sqrt(variance / count) / share, len(kept) - 1.0)


def compare_unpaired(
    baseline_samples: Sequence[float],
    candidate_samples: Sequence[float],
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
) -> Comparison:
    """Compare two separate runs; less reliable, as the difference between processes is assumed.

    Parameters
    ----------
    baseline_samples, candidate_samples : sequence of float
        Latencies in the same unit, in the order taken, from one process each.
    min_effect, alpha : float
        As for `compare_launches`.

    Raises
    ------
    DataError
        If a sample is not a latency, or a median is 0.
    """
    runs = (baseline_samples, candidate_samples)
    sides = [median_interval(samples) for samples in runs]
    for name, side in zip(("baseline", "candidate"), sides, strict=True):
        if side.estimate == 0:
            raise DataError(f"the median of the {name} is 0; it must be positive")
    errors = [_log_error(side) for side in sides] + [PROCESS_SPREAD, PROCESS_SPREAD]
    log = math.log(sides[1].estimate / sides[0].estimate)
    effect = Effect(log, math.hypot(*errors), math.inf)
    return _compared(effect, min_effect, alpha)


def _log_error(side: Interval) -> float:
    """Return the standard error of the logarithm of a median from its interval."""
    if side.low <= 0 or side.confidence <= 0:
        return math.inf
    reach = normal_quantile((1 + side.confidence) / 2)
    return math.log(side.high / side.low) / 2 / reach


def enough(
    launches: Sequence[Launch], min_effect: float = 0.01, alpha: float = 0.05, *, tests: int = 1
) -> bool:
    """Return whether no more launches are needed; call it after each launch.

    It tests only after 4, 8, 12, 16, 20 and 24 launches (`LOOKS`) and returns False in between.
    It returns True for any verdict but AMBIGUOUS, and at the last look.

    Parameters
    ----------
    launches : sequence of Launch
        All launches so far.
    min_effect, alpha : float
        As for `compare_launches`.
    tests : int
        Number of tests that Holm's method will be applied to: for `overall`, one more than the
        number of workloads if there are several.
    """
    if len(launches) >= LOOKS[-1]:
        return True
    if len(launches) not in LOOKS:
        return False
    found = compare_launches(launches, min_effect=min_effect, alpha=alpha / max(1, tests))
    return found.verdict is not Verdict.AMBIGUOUS or found.p_same <= alpha


@dataclass(frozen=True)
class Overall:
    """Several comparisons combined.

    Attributes
    ----------
    ratio : Interval
        Geometric mean of the ratios.
    p_value : float
        P-value of the mean, corrected by Holm's method together with all comparisons.
    verdict : Verdict
        Verdict on the mean.
    comparisons : tuple of Comparison
        The comparisons, with corrected p-values and the resulting verdicts.
    """

    ratio: Interval
    p_value: float
    verdict: Verdict
    comparisons: tuple[Comparison, ...]


def overall(
    comparisons: Sequence[Comparison], *, min_effect: float = 0.01, alpha: float = 0.05
) -> Overall:
    """Combine comparisons of several workloads.

    The mean is over these workloads with equal weights; it does not generalise to others. Its error
    follows from theirs, with degrees of freedom by Welch & Satterthwaite. The mean and all
    comparisons are one family of tests for Holm's method; intervals are not widened for it. Tests
    of equivalence are not corrected, because all of them must pass to call everything the same.

    Parameters
    ----------
    comparisons : sequence of Comparison
        At least one.
    min_effect, alpha : float
        As for `compare_launches`.

    Raises
    ------
    DataError
        If there are none.
    """
    if not comparisons:
        raise DataError("no comparisons to combine; at least one is needed")
    spent = min(comparison.spent for comparison in comparisons)
    tests = [_compared(_mean(comparisons), min_effect, alpha, spent=spent), *comparisons]
    if len(comparisons) == 1:  # it is its own mean
        del tests[0]
    p_values = holm([one.p_value for one in tests])
    judged = [_judged(*each, min_effect, alpha) for each in zip(tests, p_values, strict=True)]
    mean, own = judged[0], judged[-len(comparisons) :]
    return Overall(mean.ratio, mean.p_value, mean.verdict, tuple(own))


def _judged(one: Comparison, p_value: float, min_effect: float, alpha: float) -> Comparison:
    """Return a comparison with a corrected p-value and the resulting verdict."""
    p_same = one.effect.p_same(min_effect, one.spent)
    verdict = decide(one.ratio.estimate, p_value, p_same, min_effect=min_effect, alpha=alpha)
    return replace(one, p_value=p_value, p_same=p_same, verdict=verdict)


def _mean(comparisons: Sequence[Comparison]) -> Effect:
    effects = [each.effect for each in comparisons]
    log = math.fsum(each.log for each in effects) / len(effects)
    total = math.fsum(each.error**2 for each in effects)
    if total == 0 or math.isinf(total):
        return Effect(log, math.sqrt(total), 1.0)
    shares = math.fsum((each.error**2 / total) ** 2 / each.freedom for each in effects)
    return Effect(log, math.sqrt(total) / len(effects), 1 / max(shares, 1e-300))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for their number, in the order given.

    By Holm, A simple sequentially rejective multiple test procedure (1979): the probability that
    any of them is at most alpha by chance is at most alpha, for any dependence between them.

    Raises
    ------
    DataError
        If one is not in [0, 1].
    """
    for index, value in enumerate(p_values):
        if not 0 <= value <= 1:
            raise DataError(f"p_values[{index}] is {value!r}; it must be from 0 to 1")
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - done) * p_values[index]))
        adjusted[index] = reached
    return tuple(adjusted)

"""What a comparison is, and the rule for its verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.distributions import t_quantile, two_sided_p
from flashinfer_bench.stats.intervals import Interval


class Verdict(str, Enum):
    """What a comparison has found about the candidate."""

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
        Latencies in one unit; those of one index were taken one after the other.
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline.

    Attributes
    ----------
    ratio : Interval
        Latency of the candidate by that of the baseline: above 1 is slower. 0 to infinity if there
        is only one launch.
    p_value : float
        Chance of a ratio so far from 1 if both were alike, adjusted for the looks.
    verdict : Verdict
        By `decide`.
    launches, pairs : int
        How many there were; without pairs, ``pairs`` is 0.
    paired : bool
        Whether samples were interleaved.
    error : float
        Standard error of the logarithm of the ratio.
    freedom : float
        Degrees of freedom of that error; may be infinite.
    spent : float
        Share of alpha that this look could spend.
    """

    ratio: Interval
    p_value: float
    verdict: Verdict
    launches: int
    pairs: int
    paired: bool
    error: float
    freedom: float
    spent: float = 1.0


@dataclass(frozen=True)
class Effect:
    """A logarithm of a ratio, its standard error, and what is known of that."""

    log: float
    error: float
    freedom: float

    def interval(self, alpha: float, spent: float = 1.0) -> Interval:
        """Return the interval of the ratio at the part of alpha that may be spent."""
        estimate = math.exp(self.log)
        if math.isinf(self.error):
            return Interval(estimate, 0.0, math.inf, 1 - alpha)
        reach = self.error * t_quantile(1 - alpha * spent, self.freedom)
        return Interval(estimate, math.exp(self.log - reach), math.exp(self.log + reach), 1 - alpha)

    def p_value(self, spent: float = 1.0) -> float:
        """Return the two-sided p-value, divided by the part of alpha that may be spent."""
        if math.isinf(self.error):
            return 1.0
        if self.error == 0:
            return 1.0 if self.log == 0 else 0.0
        return min(1.0, two_sided_p(self.log / self.error, self.freedom) / spent)


def decide(interval: Interval, p_value: float, min_effect: float, alpha: float) -> Verdict:
    """Return the verdict on a ratio of candidate by baseline.

    SLOWER or FASTER if the test is significant and the estimate is off by more than `min_effect`.
    SAME if it is significant and off by less, since what was found does not matter, or if the whole
    interval is within `min_effect`. AMBIGUOUS otherwise: more launches would tell.

    Parameters
    ----------
    interval : Interval
        Of the ratio.
    p_value : float
        Adjusted for all looks and tests.
    min_effect : float
        Least relative difference that matters. Slower by it is a ratio of 1 + e, faster 1 / (1 +
        e).
    alpha : float
        Chance of a false alarm.

    Raises
    ------
    DataError
        If `min_effect` is negative or `alpha` not in (0, 1).
    """
    if not 0 <= min_effect < math.inf:
        raise DataError(f"min_effect is {min_effect!r}; allowed is 0 or more, such as 0.01 for 1 %")
    if not 0 < alpha < 1:
        raise DataError(f"alpha is {alpha!r}; allowed is between 0 and 1, such as 0.05")
    most = 1 + min_effect
    if p_value <= alpha:
        if interval.estimate > most:
            return Verdict.SLOWER
        return Verdict.FASTER if interval.estimate < 1 / most else Verdict.SAME
    inside = interval.low >= 1 / most and interval.high <= most
    return Verdict.SAME if inside else Verdict.AMBIGUOUS

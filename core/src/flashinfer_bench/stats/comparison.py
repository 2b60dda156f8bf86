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
    candidate_first : bool
        Whether in the first, third, ... pair the candidate was called first. In the others it is
        the other way round.
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    candidate_first: bool = False


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
    p_same : float
        Chance of a ratio so close to 1 if it were off by the least effect that matters, or more.
        Adjusted for the looks.
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
    p_same: float = 1.0


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

    def p_same(self, min_effect: float, spent: float = 1.0) -> float:
        """Return the p-value of "it is off by `min_effect` or more", by two one-sided tests.

        By Schuirmann, A comparison of the two one-sided tests procedure and the power approach
        (1987): the greater of both p-values. It is at most alpha if the interval with twice the
        chance to miss, of 90 % for 5 %, is within the effect.
        """
        room = math.log1p(min_effect) - abs(self.log)
        if math.isinf(self.error) or room < 0:
            return 1.0
        if self.error == 0:
            return 0.0
        return min(1.0, two_sided_p(room / self.error, self.freedom) / 2 / spent)


def decide(
    estimate: float, p_value: float, p_same: float, *, min_effect: float, alpha: float
) -> Verdict:
    """Return the verdict on a ratio of candidate by baseline.

    SLOWER or FASTER if the test is significant and the estimate is off by more than `min_effect`.
    SAME if it is significant and off by less, since what was found does not matter, or if the test
    of being that close is significant. AMBIGUOUS otherwise: more launches would tell.

    Parameters
    ----------
    estimate : float
        The ratio.
    p_value : float
        That it is 1, adjusted for all looks and tests.
    p_same : float
        That it is off by `min_effect` or more, adjusted for all looks.
    min_effect : float
        Least relative difference that matters. Slower by it is a ratio of 1 + e, faster 1 / (1 +
        e).
    alpha : float
        Chance of a false alarm, and of calling the same what is not.

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
        if estimate > most:
            return Verdict.SLOWER
        return Verdict.FASTER if estimate < 1 / most else Verdict.SAME
    return Verdict.SAME if p_same <= alpha else Verdict.AMBIGUOUS

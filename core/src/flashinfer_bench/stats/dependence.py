"""How much a run of samples tells about its median, if they depend on one another or drift.

The error of a median is that of a count: how many samples lie below a value. If samples are
independent and alike, the count is binomial. Neighbouring calls are alike, however, which makes it
vary more, and a level that drifts makes it vary less, because it is not by chance which part of the
run was the slow one. `count_variance` estimates by how much, in four steps:

1. The trend of the ranks is fitted with a few cosines; it tells each sample's chance to lie below.
2. What is left of the counts is prewhitened with an autoregression of order 1: Andrews & Monahan,
   An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator (1992).
3. The variance at low frequencies is the mean square of the first cosine coefficients, those of the
   trend left out: the estimator EWC of Lazarus, Lewis, Stock & Watson, HAR inference:
   recommendations for practice (2018).
4. It has as many degrees of freedom as there were coefficients. Student's t allows for that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import mul
from typing import TYPE_CHECKING

from flashinfer_bench.stats.distributions import normal_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.stats.spread import Spread

_COEFFICIENTS = 0.8
"""Times n^(2/3). The authors of EWC recommend 0.4 without prewhitening; twice as many after it keep
the coverage of `benchmarks/interval_coverage.py`, and make intervals of few samples shorter."""

_MOST_COEFFICIENTS = 60
_TREND_STEPS = (25, 300)
"""From so many samples on, one more cosine describes the trend."""

_STEADIEST, _STICKIEST = -0.5, 0.9
_LEAST_VARIANCE = 0.05
"""In units of the binomial one. Calls that alternate strictly would give 0."""


_KEPT = 1000
"""Cosines of up to so many samples are kept for the next run; those of more take too much room."""

Waves = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class CountVariance:
    """The variance of the number of samples below the median.

    Attributes
    ----------
    factor : float
        By that of independent samples; n / factor samples would tell as much if independent.
    freedom : int
        Degrees of freedom of the factor.
    """

    factor: float
    freedom: int


def count_variance(spread: Spread) -> CountVariance:
    """Return what dependence and drift make of the variance of the count.

    Parameters
    ----------
    spread : Spread
        At least four samples.
    """
    n = len(spread.weights)
    trends = 1 + sum(n >= step for step in _TREND_STEPS)
    rest = _without_trend(spread, trends)
    memory = _memory(rest, trends)
    fresh = [later - memory * earlier for earlier, later in pairwise(rest)]
    freedom = max(1, min(_MOST_COEFFICIENTS, int(_COEFFICIENTS * n ** (2 / 3)), n - 2 - trends))
    waves = _cosines(n - 1, trends + freedom)[trends:]
    power = sum(_dot(wave, fresh) ** 2 for wave in waves) / freedom / (n - 1)
    factor = 4 * power / (1 - memory) ** 2
    return CountVariance(min(max(factor, _LEAST_VARIANCE), float(n)), freedom)


def _without_trend(spread: Spread, trends: int) -> list[float]:
    """Return for each sample, in order, whether it lay below, less its chance to."""
    n = len(spread.weights)
    scores = [normal_quantile(share) for share in spread.rank_shares]
    waves = _cosines(n, trends)
    weights = [_dot(wave, scores) / n for wave in waves]
    trend = [_dot(weights, column) for column in zip(*waves, strict=True)]
    noise = sorted(score - level for score, level in zip(scores, trend, strict=True))
    chances = [bisect_right(noise, -level) / n for level in trend]
    most = max(spread.weights)
    rest = [weight - most * chance for weight, chance in zip(spread.weights, chances, strict=True)]
    middle = math.fsum(rest) / n
    return [value - middle for value in rest]


def _memory(rest: Sequence[float], trends: int) -> float:
    """Return the correlation of neighbours, corrected for what fitting has taken from it.

    The bias is -(k + (k + 2) rho) / n with k coefficients fitted: Kendall, Note on bias in the
    estimation of autocorrelation (1954), for k = 1.
    """
    power = math.fsum(value * value for value in rest)
    if power == 0:
        return 0.0
    found = math.fsum(earlier * later for earlier, later in pairwise(rest)) / power
    fitted = trends + 1
    found += (fitted + (fitted + 2) * found) / len(rest)
    return min(max(found, _STEADIEST), _STICKIEST)


def _cosines(n: int, count: int) -> Waves:
    """Return cosines of 1, 2, ... half periods over n samples; the mean square of each is 1."""
    return _kept_cosines(n, count) if n <= _KEPT else _new_cosines(n, count)


def _new_cosines(n: int, count: int) -> Waves:
    steps = [math.pi * (index + 0.5) / n for index in range(n)]
    scale = math.sqrt(2)
    return tuple(
        tuple(scale * math.cos(number * step) for step in steps) for number in range(1, count + 1)
    )


_kept_cosines = lru_cache(maxsize=16)(_new_cosines)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return float(sum(map(mul, left, right)))

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
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


_TOO_COARSE = 0.5
"""Share of the samples on the tick of the median from which on where it is within the tick is not
known: samples say nothing about the shape of a distribution that is narrower than a tick."""

_SAME_TICK = 1e-3
"""Samples closer than this share of a tick are on one: sums of floats differ in their last bits."""


@dataclass(frozen=True)
class Spread:
    """Samples as their order and their neighbours tell them.

    Attributes
    ----------
    ordered : tuple of float
        Ascending. Samples of one tick are spread over its width, so the median is that of grouped
        data (``statistics.median_grouped``, there with a straight line).
    median : float
        Of these.
    weights : tuple of float
        For each sample in the order taken: what it adds to the count that decides the median. 1 if
        it lies below and 0 if above, but see `_weights` for a median on a tick.
    rank_shares : tuple of float
        For each sample in the order taken: its rank, as a share in (0, 1); ties share theirs.
    slack : tuple of (float, float)
        Least and greatest value that the median can have on its tick, where the samples do not say
        more; empty (both the median) otherwise.
    """

    ordered: tuple[float, ...]
    median: float
    weights: tuple[float, ...]
    rank_shares: tuple[float, ...]
    slack: tuple[float, float]

    @classmethod
    def of(cls, samples: Sequence[float], resolution: float = 0.0) -> Spread:
        """Spread samples.

        Parameters
        ----------
        samples : sequence of float
            In the order taken; at least one.
        resolution : float
            Width of a tick of their clock, in their unit.
        """
        n = len(samples)
        ordered: list[float] = []
        shares = [0.0] * n
        middle = range(0)
        ties = list(_ties(samples, resolution))
        for tie in ties:
            first = len(ordered)
            for index in tie:
                shares[index] = (first + len(tie) / 2) / n
            if first <= n / 2 < first + len(tie):
                middle, tick = range(first, first + len(tie)), samples[tie[0]]
            ordered += _placed([samples[index] for index in tie], first, n, resolution)
        ordered.sort()  # ticks may overlap if not all samples are on ticks
        median = quantile(ordered, 0.5)
        below, on = _weights(middle, n)
        ranks = enumerate(index for tie in ties for index in tie)
        places = {index: rank for rank, index in ranks}
        weights = (
            on if places[i] in middle else below * (places[i] < middle.start) for i in range(n)
        )
        half = resolution / 2
        coarse = len(middle) > _TOO_COARSE * n
        slack = (max(0.0, tick - half), tick + half) if coarse else (median, median)
        return cls(tuple(ordered), median, tuple(weights), tuple(shares), slack)


def _weights(middle: range, n: int) -> tuple[float, float]:
    """Return what samples below the tick of the median count, and those on it.

    With normal quantiles z and densities f at the lower and the upper edge of the tick, the median
    is at the share t = -z1 / (z2 - z1) of it. Its derivatives by the counts up to the edges are as
    (1 - t) / f1 and t / f2; what lies below the tick is in both counts, what lies on it in one.
    """
    if len(middle) == 1:
        return 1.0, n / 2 - middle.start
    low, high = _score(middle.start, n), _score(middle.stop, n)
    share = min(max(-low / (high - low), 0.0), 1.0)
    on = share * math.exp(high * high / 2)
    return on + (1 - share) * math.exp(low * low / 2), on


def _ties(samples: Sequence[float], resolution: float) -> Iterator[list[int]]:
    """Yield the indices of samples of one tick, ticks ascending."""
    tie: list[int] = []
    for index in sorted(range(len(samples)), key=samples.__getitem__):
        if tie and samples[index] - samples[tie[0]] > resolution * _SAME_TICK:
            yield tie
            tie = []
        tie.append(index)
    yield tie


def _placed(tie: list[float], first: int, n: int, resolution: float) -> list[float]:
    """Return the samples of one tick, over its width as a normal distribution has them.

    Normal quantiles of the shares are interpolated, not the shares themselves. A straight line is
    wrong by half a standard error at 600 samples if the spread is as wide as a tick.
    """
    count = len(tie)
    if count == 1 or resolution == 0:
        return tie
    least, greatest = _score(first, n), _score(first + count, n)
    places = ((_score(first + k + 0.5, n) - least) / (greatest - least) for k in range(count))
    return [max(0.0, tie[0] + resolution * (place - 0.5)) for place in places]


def _score(rank: float, n: int) -> float:
    """Return the normal quantile of a rank; the ends are taken a quarter of a sample further in."""
    return normal_quantile(min(max(rank, 0.25), n - 0.25) / n)


def count_variance(spread: Spread) -> tuple[float, int]:
    """Return what dependence and drift make of the variance of the count.

    Parameters
    ----------
    spread : Spread
        At least four samples.

    Returns
    -------
    factor : float
        The variance of the number of samples below the median, by that of independent samples;
        n / factor samples would tell as much if independent.
    freedom : int
        Degrees of freedom of the factor.
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
    return min(max(factor, _LEAST_VARIANCE), float(n)), freedom


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

"""Samples in order of size, those of one clock tick spread over it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.stats.distributions import normal_quantile
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

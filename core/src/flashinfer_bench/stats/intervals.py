"""Intervals of medians and of their ratios.

The interval of a median is that of its bootstrap, without resampling. The bootstrap distribution of
a median is known: it is the sample's quantile function at a beta variable with both parameters
(n + 1) / 2 (Efron, Bootstrap methods: another look at the jackknife, 1979; Maritz & Jarrett, A
note on estimating the variance of the sample median, 1978). Its percentiles are order statistics,
and those between them by interpolation, as in the classical interval of a median (Hettmansperger
& Sheather, Confidence intervals based on interpolated order statistics, 1986). Calls are not
independent, so n is replaced by the number of independent samples that would tell as much: see
`dependence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.dependence import count_variance
from flashinfer_bench.stats.distributions import t_quantile
from flashinfer_bench.stats.samples import at_rank, median_of, require_samples
from flashinfer_bench.stats.spread import Spread

_FEW = 6
"""Below so many samples not even the least and the greatest hold the median in 95 % of runs."""

_MANY_BLOCKS = 6
"""From so many blocks on, their ratios themselves tell how much a ratio varies."""

_MOST_GROUPS = 16
"""More blocks are merged: a median of several is not moved by one call that was disturbed."""

Block = tuple[Sequence[float], Sequence[float]]
"""Samples of the numerator, and samples of the denominator that were taken beside them."""


@dataclass(frozen=True)
class Interval:
    """An estimate, and where the true value is with some confidence.

    Attributes
    ----------
    estimate : float
        The figure itself, in the unit of the samples, or a ratio.
    low, high : float
        The ends. The estimate lies between them.
    confidence : float
        Share of such intervals that hold the true value; less than asked for where few samples
        do not allow more.
    """

    estimate: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """Half of the width as a share of the estimate; infinite for an estimate of 0."""
        width = self.high - self.low
        if self.estimate == 0:
            return math.inf if width else 0.0
        return width / 2 / self.estimate

    def excludes(self, value: float) -> bool:
        """Return whether a value lies outside."""
        return not self.low <= value <= self.high


def median_interval(
    samples: Sequence[float], *, confidence: float = 0.95, resolution: float = 0.0
) -> Interval:
    """Return the median of a run with its interval.

    Parameters
    ----------
    samples : sequence of float
        Latencies in the order taken; at least one.
    confidence : float
        Share of intervals that are to hold the true median, in (0, 1).
    resolution : float
        Width of a tick of the clock, in the unit of the samples. Samples of one tick count as
        spread over it; if most are on one tick, the interval is at least the tick.

    Returns
    -------
    Interval
        With fewer than six samples, from the least to the greatest. Of these 1 - 2^(1 - n) hold the
        median, which is what ``confidence`` says then: 0 for one sample.

    Raises
    ------
    DataError
        If a sample is NaN, negative or infinite, or there is none; or a setting is not allowed.
    """
    _require_settings(confidence, resolution)
    spread = Spread.of(require_samples(samples), resolution)
    ordered, n = spread.ordered, len(spread.ordered)
    reach = 0.5 if n < _FEW else _reach(spread, confidence)
    low = at_rank(ordered, (0.5 - reach) * n - 0.5)
    high = at_rank(ordered, (0.5 + reach) * n - 0.5)
    if n < _FEW:
        low, high = max(0.0, low - resolution / 2), high + resolution / 2
    return Interval(
        spread.median,
        min(low, spread.slack[0]),
        max(high, spread.slack[1]),
        min(confidence, 1 - 0.5 ** (n - 1)),
    )


def _require_settings(confidence: float, resolution: float) -> None:
    if not 0 < confidence < 1:
        raise DataError(f"confidence is {confidence!r}; allowed is between 0 and 1, such as 0.95")
    if not 0 <= resolution < math.inf:
        raise DataError(f"resolution is {resolution!r}; allowed is 0 (not known) or a finite tick")


def _reach(spread: Spread, confidence: float) -> float:
    """Return how far from one half the ends are, as a share of all samples.

    A beta variable with both parameters a is 1/2 + T / (2 sqrt(2a + T^2)), where T has Student's t
    distribution with 2a degrees of freedom.
    """
    variance = count_variance(spread)
    freedom = len(spread.weights) / variance.factor + 1
    t = t_quantile(confidence, freedom)
    t *= t_quantile(confidence, variance.freedom) / t_quantile(confidence, math.inf)
    return 0.5 * t / math.sqrt(freedom + t * t)


def ratio_interval(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    confidence: float = 0.95,
    resolution: float = 0.0,
) -> Interval:
    """Return the ratio of the medians of two independent runs with its interval.

    The ends come from those of the medians, in logarithms: Donner & Zou, Closed-form confidence
    intervals for functions of the normal mean and standard deviation (2012).

    Parameters
    ----------
    numerator, denominator : sequence of float
        Latencies of one unit, each in the order taken; for a speed-up those of the reference and
        those of the solution.
    confidence, resolution : float
        As for `median_interval`.

    Raises
    ------
    DataError
        If a sample is no latency, or a median is 0, so that there is no ratio.
    """
    top = median_interval(numerator, confidence=confidence, resolution=resolution)
    bottom = median_interval(denominator, confidence=confidence, resolution=resolution)
    for name, interval in (("numerator", top), ("denominator", bottom)):
        if interval.estimate <= 0:
            raise DataError(
                f"the median of the {name} is 0, so there is no ratio",
                hint="take a timer of finer resolution: fib timers list",
            )
    ratio = top.estimate / bottom.estimate
    less = math.hypot(_log(top.low / top.estimate), _log(bottom.high / bottom.estimate))
    more = math.hypot(_log(top.high / top.estimate), _log(bottom.low / bottom.estimate))
    attained = min(top.confidence, bottom.confidence)
    return Interval(ratio, ratio * math.exp(-less), ratio * math.exp(more), attained)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def interleaved_ratio(
    blocks: Sequence[Block],
    *,
    confidence: float = 0.95,
    resolution: float = 0.0,
) -> Interval:
    """Return the ratio of the medians of two runs that took turns, with its interval.

    What slows both down for a while does not change the ratio of a block. From six blocks on the
    interval is Student's of the logarithms of their ratios. With fewer it is that of
    `ratio_interval`, which is longer where blocks differ. The estimate is the ratio of the medians
    of all samples in either case, and the interval reaches to it.

    Parameters
    ----------
    blocks : sequence of (sequence of float, sequence of float)
        Numerator and denominator, for a speed-up reference and solution, one block after the other.
    confidence, resolution : float
        As for `median_interval`.

    Raises
    ------
    DataError
        As `ratio_interval`; also if there is no block.
    """
    top = [value for block in blocks for value in block[0]]
    bottom = [value for block in blocks for value in block[1]]
    whole = ratio_interval(top, bottom, confidence=confidence, resolution=resolution)
    logs = [_log_ratio(group) for group in _groups(blocks)]
    known = [log for log in logs if log is not None]
    if len(known) < _MANY_BLOCKS:
        return whole
    middle = math.fsum(known) / len(known)
    reach = t_quantile(confidence, len(known) - 1) * standard_error(known)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(whole.estimate, min(low, whole.estimate), max(high, whole.estimate), confidence)


def _groups(blocks: Sequence[Block]) -> list[Block]:
    """Merge neighbours until there are at most as many as a t test gains from."""
    size = math.ceil(len(blocks) / _MOST_GROUPS)
    merged: list[Block] = []
    for begin in range(0, len(blocks), size):
        group = blocks[begin : begin + size]
        above = [value for block in group for value in block[0]]
        merged.append((above, [value for block in group for value in block[1]]))
    return merged


def _log_ratio(block: Block) -> Optional[float]:
    """Return the logarithm of the ratio of a block; None if it has none."""
    above, below = block
    if not above or not below:
        return None
    medians = median_of(above), median_of(below)
    return math.log(medians[0] / medians[1]) if min(medians) > 0 else None


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))

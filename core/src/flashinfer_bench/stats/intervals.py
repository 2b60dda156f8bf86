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
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.dependence import Spread, count_variance
from flashinfer_bench.stats.distributions import t_quantile
from flashinfer_bench.stats.samples import at_rank, require_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW = 6
"""Below so many samples not even the least and the greatest hold the median in 95 % of runs."""


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


def over_groups(whole: Interval, groups: Sequence[Sequence[float]]) -> Interval:
    """Return an interval of a median that also covers what differs between groups of samples.

    Samples of one process tell nothing of how processes differ. The ends are those of Student's
    interval for the mean of the logarithms of the groups' medians, and at least those of `whole`.

    Parameters
    ----------
    whole : Interval
        That of all samples together.
    groups : sequence of sequence of float
        The same samples by process; at least two groups, none of them empty.
    """
    medians = [median(group) for group in groups]
    if not all(one > 0 for one in medians):
        return whole
    logs = [math.log(one) for one in medians]
    middle = math.fsum(logs) / len(logs)
    spread = math.fsum((one - middle) ** 2 for one in logs) / (len(logs) - 1) / len(logs)
    reach = t_quantile(whole.confidence, len(logs) - 1) * math.sqrt(spread)
    return replace(
        whole,
        low=min(whole.low, math.exp(middle - reach)),
        high=max(whole.high, math.exp(middle + reach)),
    )


def _require_settings(confidence: float, resolution: float) -> None:
    if not 0 < confidence < 1:
        raise DataError(f"confidence is {confidence!r}; allowed: between 0 and 1, such as 0.95")
    if not 0 <= resolution < math.inf:
        raise DataError(f"resolution is {resolution!r}; allowed: 0 (unknown) or a finite tick")


def _reach(spread: Spread, confidence: float) -> float:
    """Return how far from one half the ends are, as a share of all samples.

    A beta variable with both parameters a is 1/2 + T / (2 sqrt(2a + T^2)), where T has Student's t
    distribution with 2a degrees of freedom.
    """
    factor, factor_freedom = count_variance(spread)
    freedom = len(spread.weights) / factor + 1
    t = t_quantile(confidence, freedom)
    t *= t_quantile(confidence, factor_freedom) / t_quantile(confidence, math.inf)
    return 0.5 * t / math.sqrt(freedom + t * t)


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], *, confidence: float = 0.95
) -> Interval:
    """Return the ratio of the medians of two independent runs with its interval.

    The ends come from those of the medians, in logarithms: Donner & Zou, Closed-form confidence
    intervals for functions of the normal mean and standard deviation (2012).

    Parameters
    ----------
    numerator, denominator : sequence of float
        Latencies of one unit, each in the order taken; for a speed-up those of the reference and
        those of the solution.
    confidence : float
        As for `median_interval`.

    Raises
    ------
    DataError
        If a sample is not a latency, or a median is 0, so that there is no ratio.
    """
    top = median_interval(numerator, confidence=confidence)
    bottom = median_interval(denominator, confidence=confidence)
    for name, interval in (("numerator", top), ("denominator", bottom)):
        if interval.estimate <= 0:
            raise DataError(
                f"the median of the {name} is 0, so there is no ratio",
                hint="use a timer with finer resolution: fib timers list",
            )
    ratio = top.estimate / bottom.estimate
    less = math.hypot(_log(top.low / top.estimate), _log(bottom.high / bottom.estimate))
    more = math.hypot(_log(top.high / top.estimate), _log(bottom.low / bottom.estimate))
    attained = min(top.confidence, bottom.confidence)
    return Interval(ratio, ratio * math.exp(-less), ratio * math.exp(more), attained)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf

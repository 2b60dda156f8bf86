"""A run of samples in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, fsum, inf, log
from typing import TYPE_CHECKING

from flashinfer_bench.stats.intervals import Interval, median_interval
from flashinfer_bench.stats.samples import median_of, quantile, require_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

_FENCE = 1.5
"""Interquartile ranges beyond the quartiles: Tukey, Exploratory data analysis (1977)."""

_NORMAL_MAD = 1.4826
"""A normal distribution's standard deviation by its median absolute deviation."""

__all__ = ["Summary", "count_outliers", "describe", "require_samples"]


@dataclass(frozen=True)
class Summary:
    """A run of samples in a few figures, in the unit of the samples unless said otherwise.

    Attributes
    ----------
    count : int
        Number of samples.
    median : float
        As recorded, without regard to the ticks of the clock.
    interval : Interval
        Of the median, by `median_interval`.
    mean, minimum, maximum : float
        Of all samples.
    p05, p25, p75, p95 : float
        Quantiles, by linear interpolation.
    relative_spread : float
        Median absolute deviation times 1.4826, as a share of the median: for a normal distribution
        its standard deviation, and otherwise one that outliers do not change. Infinite if the
        median is 0 and not all samples are.
    outliers : int
        By `count_outliers`.
    """

    count: int
    median: float
    interval: Interval
    mean: float
    minimum: float
    maximum: float
    p05: float
    p25: float
    p75: float
    p95: float
    relative_spread: float
    outliers: int


def describe(
    samples: Sequence[float], *, confidence: float = 0.95, resolution: float = 0.0
) -> Summary:
    """Return the figures of a run.

    Parameters
    ----------
    samples : sequence of float
        Latencies in the order taken; at least one.
    confidence, resolution : float
        As for `median_interval`.

    Raises
    ------
    DataError
        If a sample is no latency, or there is none.
    """
    values = require_samples(samples)
    ordered = sorted(values)
    p05, p25, median, p75, p95 = (quantile(ordered, s) for s in (0.05, 0.25, 0.5, 0.75, 0.95))
    return Summary(
        count=len(values),
        median=median,
        interval=median_interval(values, confidence=confidence, resolution=resolution),
        mean=fsum(values) / len(values),
        minimum=ordered[0],
        maximum=ordered[-1],
        p05=p05,
        p25=p25,
        p75=p75,
        p95=p95,
        relative_spread=_relative_spread(values, median),
        outliers=count_outliers(values, resolution=resolution),
    )


def _relative_spread(values: Sequence[float], median: float) -> float:
    deviation = _NORMAL_MAD * median_of([abs(value - median) for value in values])
    if median == 0:
        return inf if any(values) else 0.0
    return deviation / median


def count_outliers(samples: Sequence[float], *, resolution: float = 0.0) -> int:
    """Return how many samples lie far from the bulk.

    These are outside Tukey's fences, 1.5 interquartile ranges beyond the quartiles, on a
    logarithmic scale: latencies are skewed to the right, and their noise is a share of them. Of
    independent lognormal samples 0.7 % are. Outliers are counted, and never left out.

    Parameters
    ----------
    samples : sequence of float
        Latencies in any order; at least one.
    resolution : float
        Width of a tick of the clock: what is within one and a half of the quartiles is none.

    Raises
    ------
    DataError
        If a sample is no latency, or there is none.
    """
    ordered = sorted(require_samples(samples))
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    slack = _FENCE * resolution
    if low <= 0:  # no logarithm
        reach = _FENCE * (high - low)
        low, high = low - reach, high + reach
    else:
        reach = _FENCE * log(high / low)
        low, high = low * exp(-reach), high * exp(min(reach, 600.0))
    return sum(not low - slack <= value <= high + slack for value in ordered)

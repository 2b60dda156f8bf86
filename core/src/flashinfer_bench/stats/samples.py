"""What a valid sample of a latency is, and simple statistics of samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FENCE = 1.5
"""Interquartile ranges beyond the quartiles: Tukey, Exploratory data analysis (1977)."""

_HINT = "a latency is a finite number, 0 or more; check the timer: fib timers check"


def require_samples(samples: Sequence[float], what: str = "samples") -> tuple[float, ...]:
    """Return the samples as floats, if each of them can be a latency.

    Parameters
    ----------
    samples : sequence of float
        Latencies, in any unit.
    what : str
        What they are, for the message.

    Raises
    ------
    DataError
        If there are none, or one is NaN, negative or infinite. Also a ``ValueError``. The message
        names its index and its value.
    """
    values = tuple(float(value) for value in samples)
    if not values:
        raise DataError(f"{what}: no samples; at least one is needed", hint=_HINT)
    for index, value in enumerate(values):
        if not math.isfinite(value) or value < 0:
            raise DataError(f"{what}[{index}] is {value!r}, which is not a latency", hint=_HINT)
    return values


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted samples by linear interpolation.

    This is definition 7 of Hyndman & Fan, Sample Quantiles in Statistical Packages (1996), which
    numpy and most spreadsheets use by default.

    Parameters
    ----------
    ordered : sequence of float
        Samples in ascending order, at least one.
    share : float
        From 0 (the least) to 1 (the greatest).
    """
    return at_rank(ordered, share * (len(ordered) - 1))


def at_rank(ordered: Sequence[float], rank: float) -> float:
    """Return the value at a rank from 0 to n - 1, between neighbours by linear interpolation."""
    rank = min(max(rank, 0.0), len(ordered) - 1.0)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def count_outliers(samples: Sequence[float]) -> int:
    """Return how many samples lie far from the bulk.

    These are outside Tukey's fences, 1.5 interquartile ranges beyond the quartiles, on a
    logarithmic scale: latencies are skewed to the right, and their noise is a share of them. Of
    independent lognormal samples 0.7 % are. Outliers are counted, and never left out.

    Parameters
    ----------
    samples : sequence of float
        Latencies in any order; at least one.

    Raises
    ------
    DataError
        If a sample is not a latency, or there is none.
    """
    ordered = sorted(require_samples(samples))
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    if low <= 0:  # no logarithm
        reach = _FENCE * (high - low)
        low, high = low - reach, high + reach
    else:
        reach = _FENCE * math.log(high / low)
        low, high = low * math.exp(-reach), high * math.exp(min(reach, 600.0))
    return sum(not low <= value <= high for value in ordered)

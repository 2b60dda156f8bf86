"""Intervals of latencies, of ratios between them, and of means over workloads.

They are combined in logarithms, end by end: Donner & Zou, Closed-form confidence intervals for
functions of the normal mean and standard deviation (2012). Each one belongs to a run of its own, so
that their errors are independent.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.report.statistics import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashinfer_bench.data.run_source import Ends
    from flashinfer_bench.report.results import Result


class Measured(NamedTuple):
    """A figure, and where the true value lies with a confidence of 95 %, if that is known.

    Attributes
    ----------
    value : float
        The figure, positive: a latency in milliseconds, or a ratio.
    ends : (float, float) or None
        Both ends of the interval.
    """

    value: float
    ends: Optional[Ends] = None

    @property
    def low(self) -> float:
        """The lower end; the figure itself where no interval is known."""
        return self.ends[0] if self.ends is not None else self.value

    @property
    def high(self) -> float:
        """The upper end; the figure itself where no interval is known."""
        return self.ends[1] if self.ends is not None else self.value

    @property
    def half_width(self) -> Optional[float]:
        """Half of the width as a share of the figure; None without an interval."""
        return (self.high - self.low) / 2 / self.value if self.ends is not None else None


def latency_of(result: Result) -> Optional[Measured]:
    """Return the latency of a result; None unless it is positive."""
    return Measured(result.latency_ms, result.interval_ms) if result.latency_ms else None


def speedup_of(result: Result) -> Optional[Measured]:
    """Return the speed-up over the reference; None where that was not timed."""
    return Measured(result.speedup, result.speedup_interval) if result.speedup else None


def ratio_of(above: Measured, below: Measured) -> Measured:
    """Return the ratio of two figures of independent runs.

    It is that of `flashinfer_bench.stats.intervals.ratio_interval`, made of the intervals of both
    instead of their samples. Unless both have one it has none.
    """
    ratio = above.value / below.value
    if above.ends is None or below.ends is None:
        return Measured(ratio)
    less = math.hypot(_log(above.low / above.value), _log(below.high / below.value))
    more = math.hypot(_log(above.high / above.value), _log(below.low / below.value))
    return Measured(ratio, (ratio * math.exp(-less), ratio * _exp(more)))


def speedup_over(baseline: Measured, own: Measured) -> Measured:
    """Return the latency of a baseline over another; exactly 1 over that of itself."""
    if baseline == own:  # one and the same run, in which its errors cancel out
        return Measured(1.0, (1.0, 1.0) if own.ends is not None else None)
    return ratio_of(baseline, own)


def mean_of(figures: Iterable[Measured]) -> Optional[Measured]:
    """Return the geometric mean of independent figures; without an interval unless all have one.

    None if there are none, or one is not a positive finite number.
    """
    given = list(figures)
    mean = geometric_mean([one.value for one in given])
    if mean is None or any(one.ends is None for one in given):
        return None if mean is None else Measured(mean)
    less = math.hypot(*(_log(one.low / one.value) for one in given)) / len(given)
    more = math.hypot(*(_log(one.high / one.value) for one in given)) / len(given)
    return Measured(mean, (mean * math.exp(-less), mean * _exp(more)))


def ranks(figures: Sequence[Measured]) -> list[int]:
    """Return the rank of each latency: one more than there are that are smaller beyond doubt.

    Latencies whose intervals overlap are not told apart. Of three in a chain (the first overlaps
    the second, and the second the third) the third is behind the first only.

    Parameters
    ----------
    figures : sequence of Measured
        In any order.
    """
    highs = sorted(one.high for one in figures)
    return [1 + bisect_left(highs, one.low) for one in figures]


def rank_labels(places: Sequence[int]) -> list[str]:
    """Return ranks as they are read: ``1``, or ``=2`` where several share one."""
    counts = Counter(places)
    return [f"={one}" if counts[one] > 1 else str(one) for one in places]


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf

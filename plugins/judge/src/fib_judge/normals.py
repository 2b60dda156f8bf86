"""What is normal for the time that exchanges take: what the reference needed for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.calls import TimedCall

_BUSY = 2.0  # median over the fastest tenth; 1.1 to 1.7 where nothing else runs
_NOISY = 0.5  # spread over median; 0.03 to 0.35 where nothing else runs


@dataclass(frozen=True)
class Normal:
    """How a time is distributed over the reference's calls.

    Attributes
    ----------
    median_ms : float
        The median in milliseconds.
    spread_ms : float
        Robust standard deviation: the larger of 1.4826 × the median absolute deviation, and the
        interquartile range / 1.349. Both are a normal distribution's standard deviation; the second
        also sees two heaps of nearly the same size.
    count : int
        Number of calls.
    low_ms : float
        What a tenth of the calls stay below; infinite if that is not known.
    """

    median_ms: float
    spread_ms: float
    count: int
    low_ms: float = math.inf

    @property
    def usual_ms(self) -> float:
        """What may be put down to the exchange: the median, but at most twice what is possible.

        On a busy machine the median of the reference may be so much higher than that of a candidate
        which had a quiet moment that a whole latency could hide in between.
        """
        return min(self.median_ms, _BUSY * self.low_ms)

    @property
    def is_noisy(self) -> bool:
        """Whether the machine is so busy that even the reference waits for chance's sake mostly."""
        return self.spread_ms > _NOISY * self.median_ms

    @classmethod
    def of(cls, values: Sequence[float]) -> Normal:
        """Sum up `values`, in milliseconds; at least one."""
        middle = median(values)
        deviation = median(abs(value - middle) for value in values)
        ordered = sorted(values)
        last = len(ordered) - 1
        between = ordered[math.ceil(last * 0.75)] - ordered[math.floor(last * 0.25)]
        spread = max(1.4826 * deviation, between / 1.349)
        return cls(middle, spread, len(ordered), ordered[math.floor(last * 0.1)])

    def or_slower(self, other: Normal) -> Normal:
        """Return the one with the larger median, and what was possible at best in either."""
        slower = max(self, other, key=lambda normal: normal.median_ms)
        return replace(slower, low_ms=min(self.low_ms, other.low_ms))


@dataclass(frozen=True)
class Normals:
    """What is normal for the calls of one workload.

    Attributes
    ----------
    overhead, exchange, stage : Normal
        Waiting beyond the claimed latency: for the call, and in the whole exchange; preparation.
    resolution_ms : float, optional
        Smallest difference of two samples; None if all were the same.
    describe : Normal
        Waiting for the answer after a device has finished.
    """

    overhead: Normal
    exchange: Normal
    stage: Normal
    resolution_ms: Optional[float] = None
    describe: Normal = Normal(0.0, 0.0, 0)

    @classmethod
    def of(cls, calls: Sequence[TimedCall]) -> Normals:
        """Sum up calls of the reference; at least one."""
        steps = sorted({call.sample_ms for call in calls})
        gaps = [after - before for before, after in pairwise(steps)]
        half = lower_half(calls)
        return cls(
            # The least is found where the judge was late to hear that a call begins.
            replace(Normal.of([call.overhead_ms for call in half]), low_ms=math.inf),
            Normal.of([call.exchange_ms for call in half]),
            Normal.of([call.stage_ms for call in half]),
            min(gaps, default=None),
            Normal.of([call.describe_ms for call in half]),
        )

    def or_slower(self, other: Normals) -> Normals:
        """Return the slower of both for each time: what the machine is like when it is busier."""
        return Normals(
            self.overhead.or_slower(other.overhead),
            self.exchange.or_slower(other.exchange),
            self.stage.or_slower(other.stage),
            self.resolution_ms,
            self.describe.or_slower(other.describe),
        )


def lower_half(calls: Sequence[TimedCall]) -> list[TimedCall]:
    """Return the calls whose claimed latency is at most the median of the claims."""
    middle = median(call.sample_ms for call in calls)
    return [call for call in calls if call.sample_ms <= middle]

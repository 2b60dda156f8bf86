"""The monotonic wall clock, for work that is done when the call returns."""

from __future__ import annotations

import math
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

_NS_PER_MS = 1e6
_READINGS = 255
# A call that is shorter than this is measured several times in a row, where that is allowed, until
# so many microseconds have passed: then what reading the clock costs is lost in the whole.
_SHORT_MS = 1e-3
_BATCH_MS = 1e-2
_LARGEST_BATCH = 1000


class WallClockTimer(Timer):
    """Reads `time.perf_counter_ns` before and after each call.

    What two readings in a row cost is measured when the timer is made, and taken out of each
    sample; the call of the function itself is part of its latency. A result is freed after the
    second reading.
    """

    name = "cpu"
    version = "3"
    resolution_ms = 1e-6

    def __init__(self) -> None:
        self._clock = time.perf_counter_ns
        # The least of many: more than the clock costs is never taken out, however busy the machine.
        self._reading_ns = min(map(_reading_ns, repeat(self._clock, _READINGS)))

    @property
    def removed_ms(self) -> float:
        """What is taken out of each sample, in milliseconds."""
        return self._reading_ns / _NS_PER_MS

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time one call; see `Timer.time_call`."""
        clock = self._clock
        start = clock()
        result = function(*arguments)
        stop = clock()
        return max(stop - start - self._reading_ns, 0) / _NS_PER_MS, result

    def batch_of(self, latency_ms: float) -> int:
        """Return how many calls of that length to time at once; see `Timer.batch_of`."""
        if latency_ms >= _SHORT_MS:
            return 1
        return math.ceil(_BATCH_MS / max(latency_ms, _BATCH_MS / _LARGEST_BATCH))

    def time_batch(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], count: int, *, device: str
    ) -> float:
        """Time `count` calls between two readings; see `Timer.time_batch`."""
        clock, calls = self._clock, repeat(None, count)
        start = clock()
        for _ in calls:
            function(*arguments)
        stop = clock()
        return max(stop - start - self._reading_ns, 0) / _NS_PER_MS / count


def _reading_ns(clock: Callable[[], int]) -> int:
    start = clock()
    return clock() - start

"""The monotonic wall clock, for work that is done when the call returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

_NS_PER_MS = 1e6
_READINGS = 255


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
        self._reading_ns = min(_reading_ns(self._clock) for _ in range(_READINGS))

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


def _reading_ns(clock: Callable[[], int]) -> int:
    start = clock()
    return clock() - start

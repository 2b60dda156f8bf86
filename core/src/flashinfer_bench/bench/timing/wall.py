"""The monotonic wall clock, for work that is done when the call returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

_NS_PER_MS = 1e6


class WallClockTimer(Timer):
    """Reads `time.perf_counter_ns` before and after each call.

    A result is freed after the second reading.
    """

    name = "cpu"
    version = "2"

    def __init__(self) -> None:
        self._clock = time.perf_counter_ns

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time one call; see `Timer.time_call`."""
        clock = self._clock
        start = clock()
        result = function(*arguments)
        stop = clock()
        return (stop - start) / _NS_PER_MS, result

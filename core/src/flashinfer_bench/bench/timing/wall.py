"""The monotonic wall clock, for work that is done when the call returns."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import ArgumentsOf, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

_NS_PER_MS = 1e6


class WallClockTimer(Timer):
    """Reads `time.perf_counter_ns` before and after each call.

    A result is freed after the second reading. The garbage collector is paused meanwhile.
    """

    name = "cpu"
    version = "1"

    def __init__(self) -> None:
        self._clock = time.perf_counter_ns
        self._gc_enabled, self._gc_disable, self._gc_enable = gc.isenabled, gc.disable, gc.enable

    def measure(
        self,
        function: Callable[..., Any],
        arguments: ArgumentsOf,
        *,
        warmup: int,
        iterations: int,
        device: str,
    ) -> list[float]:
        """Time `iterations` calls; see `Timer.measure`."""
        for index in range(warmup):
            function(*arguments(index))
        collecting = self._gc_enabled()
        self._gc_disable()
        try:
            return [
                self._one(function, arguments(warmup + index)) / _NS_PER_MS
                for index in range(iterations)
            ]
        finally:
            if collecting:
                self._gc_enable()

    def _one(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
        clock = self._clock
        start = clock()
        result = function(*arguments)
        stop = clock()
        del result
        return stop - start

"""Pairs of CUDA events around each call, on the current stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import ArgumentsOf, Timer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable


class CudaEventTimer(Timer):
    """Records an event before and after each call, and reads them when the device has finished.

    Work that a call puts on another stream, without joining it, is not in its latency. The device
    is synchronised before the first timed call and after the last.
    """

    name = "cuda_event"
    version = "1"

    def __init__(self) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._record: Any = torch.cuda.Event.record
        self._elapsed: Any = torch.cuda.Event.elapsed_time
        self._synchronize, self._on_device = torch.cuda.synchronize, torch.cuda.device

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
        with self._on_device(device):
            for index in range(warmup):
                function(*arguments(index))
            self._synchronize()
            pairs = [self._one(function, arguments(warmup + index)) for index in range(iterations)]
            self._synchronize()
        samples = [self._elapsed(start, stop) for start, stop in pairs]
        bad = [sample for sample in samples if not (math.isfinite(sample) and sample >= 0)]
        if bad:
            raise TimingError(f"CUDA events reported a latency of {bad[0]} ms")
        return samples

    def _one(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        self._record(start)
        result = function(*arguments)
        self._record(stop)
        del result
        return start, stop

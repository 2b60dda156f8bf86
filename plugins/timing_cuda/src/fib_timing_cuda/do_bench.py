"""Timer that uses Triton's do_bench, for results comparable with those of Triton's users."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import Timer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable

# Milliseconds per sample, in addition to a few calls; each sample is a median of many calls.
_WARMUP_MS, _REPEAT_MS = 5, 20


class DoBenchTimer(Timer):
    """Calls the function many times with `triton.testing.do_bench`, and takes the median.

    do_bench flushes the L2 cache before each call, includes host launches in the latency, and does
    not see work on other streams. All calls get the same values at the same addresses.
    """

    name = "do_bench"
    version = "1"
    resolution_ms = 5e-4
    repeats = True
    caches = ("cold",)

    def __init__(self) -> None:
        import torch

        self._on_device, self._synchronize = torch.cuda.device, torch.cuda.synchronize

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time many calls; return the median, and the result of the last call."""
        try:
            from triton.testing import do_bench  # slow
        except ImportError as error:
            raise TimingError(
                f"triton.testing.do_bench cannot be imported: {error}", hint="install triton"
            ) from error
        last = [None]

        def call() -> None:
            last[0] = function(*arguments)

        with self._on_device(device):
            sample = float(do_bench(call, warmup=_WARMUP_MS, rep=_REPEAT_MS, return_mode="median"))
            self._synchronize()
        if not (math.isfinite(sample) and sample >= 0):
            raise TimingError(f"do_bench reported a latency of {sample} ms")
        return sample, last[0]

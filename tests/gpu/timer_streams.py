"""What the timer of CUDA events makes of work on other streams, and of launch gaps.

Prints one JSON object with medians in microseconds; exits with 1 if work can be hidden, or gaps
between launches are in a latency. Needs core and torch, and no plugin.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch
from common import told

from fib_timing_cuda.cuda_event import CudaEventTimer

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda:0"
CALLS = 200
BETWEEN_US = 2.5


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Work:
    """The same matrix product, made in honest and in other ways."""

    def __init__(self) -> None:
        self.a = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.x = torch.randn(1024, device=DEVICE)
        self.side, self.urgent = torch.cuda.Stream(), torch.cuda.Stream(priority=-5)

    def plain(self) -> torch.Tensor:
        return self.a @ self.a

    def on(self, stream: torch.cuda.Stream, *, join: bool, busy_s: float = 0.0) -> torch.Tensor:
        with torch.cuda.stream(stream):
            result = self.a @ self.a
        spin(busy_s)
        if join:
            torch.cuda.current_stream().wait_stream(stream)
        return result

    def switch(self) -> torch.Tensor:
        torch.cuda.set_stream(self.side)
        result = self.a @ self.a
        torch.cuda.set_stream(torch.cuda.default_stream())
        return result

    def later(self) -> None:
        def go() -> None:
            time.sleep(0.0005)
            for _ in range(3):
                self.on(self.side, join=False)

        threading.Thread(target=go).start()

    def twenty(self) -> torch.Tensor:
        y = self.x
        for _ in range(20):
            y = y + 1
        return y

    def cases(self) -> dict[str, Callable[[], object]]:
        return {
            "null": lambda: None,
            "add": lambda: self.x + 1,
            "20 adds": self.twenty,
            "plain": self.plain,
            "joined": lambda: self.on(self.side, join=True),
            "not joined": lambda: self.on(self.side, join=False),
            "not joined, busy host": lambda: self.on(self.side, join=False, busy_s=8e-4),
            "urgent, busy host": lambda: self.on(self.urgent, join=False, busy_s=8e-4),
            "switched stream": self.switch,
            "launched later": self.later,
            "plain again": self.plain,
        }


def measured(timer: CudaEventTimer, function: Callable[[], object]) -> dict[str, object]:
    samples, overheads = [], []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        sample, result = timer.time_call(function, (), device=DEVICE)
        overheads.append((time.perf_counter() - begun) * 1e6 - sample * 1e3)
        samples.append(sample * 1e3)
        del result
        time.sleep(0.003 if "later" in getattr(function, "__name__", "") else 0)
    parts = statistics.quantiles(samples[10:], n=20)
    return {
        "median": statistics.median(samples[10:]),
        "p5": parts[0],
        "p95": parts[18],
        "overhead": statistics.median(overheads[10:]),
        "overhead_p95": statistics.quantiles(overheads[10:], n=20)[18],
        "notes": timer.take_notes(),
    }


def main() -> int:
    timer, work = CudaEventTimer(), Work()
    found = {name: measured(timer, function) for name, function in work.cases().items()}
    plain = float(found["plain"]["median"])  # type: ignore[arg-type]
    hidden = [
        name
        for name in found
        if ("joined" in name or "urgent" in name or "switched" in name)
        and float(found[name]["median"]) < 0.9 * plain  # type: ignore[arg-type]
    ]
    # Between two kernels of a stream lie 1 to 2.5 us; where one waits for the host, ten more.
    apart = 40 * (float(found["add"]["median"]) + BETWEEN_US)  # type: ignore[arg-type]
    gaps = float(found["20 adds"]["median"]) > apart  # type: ignore[arg-type]
    report = {
        "device": torch.cuda.get_device_name(0),
        "fills": timer._hold.fills,
        "event_of_context": timer._everything.works,
        "hidden": hidden,
        "gaps": gaps,
        "us": found,
    }
    return told(report, hidden or gaps or not timer._hold.fills)


if __name__ == "__main__":
    sys.exit(main())

"""The watcher on a real GPU: it only reads. Clocks are never set in a test."""

from __future__ import annotations

import json
import time
from statistics import median

import pytest
import torch

from fib_judge.watch import EnvironmentWatch, keep
from fib_judge.watch.nvml import NvmlWatcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def work(seconds):
    """Keep the GPU busy."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()


def test_tells_clocks_of_a_busy_device():
    watcher = NvmlWatcher()
    watcher.start("cuda:0")
    found, took_us = {}, []
    for _ in range(40):
        work(0.02)
        begun = time.perf_counter()
        reading = watcher.sample()
        took_us.append((time.perf_counter() - begun) * 1e6)
        found.update(reading.values)
        print(reading)
    print(f"one look: median {median(took_us):.0f} us, longest {max(took_us):.0f} us")
    print(watcher.stop())
    assert {"memory_mhz", "temperature_c", "power_w"} <= set(found)
    assert 100 < found.get("sm_mhz", found.get("idle_sm_mhz")) < 5000


def test_around_a_timing():
    watched = EnvironmentWatch("cuda:0")
    watched.before()
    took_us = []
    for batch in range(50):
        work(0.01)
        begun = time.perf_counter()
        waited = watched.mark((batch + 1) * 10)
        took_us.append((time.perf_counter() - begun - waited) * 1e6)
    report = watched.after()
    print(json.dumps(report.facts, indent=1))
    print(report.notes, report.throttled, f"waited {report.waited_s} s")
    print(f"one mark: median {median(took_us):.0f} us, longest {max(took_us):.0f} us")
    kept, dropped = keep([1.0] * 500, report)
    assert len(kept) + len(dropped) == 500
    assert "stopped watching" not in " ".join(report.notes)

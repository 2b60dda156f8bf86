"""The watcher on a real GPU: it only reads. Clocks are never set in a test."""

import time

import pytest
import torch

from fib_judge.watch import EnvironmentWatch, keep

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


def test_around_a_timing():
    watched = EnvironmentWatch("cuda:0")
    watched.before()
    for batch in range(50):
        work(0.01)
        watched.mark((batch + 1) * 10)
    report = watched.after()
    kept, dropped = keep([1.0] * 500, report)
    assert len(kept) + len(dropped) == 500
    assert "stopped watching" not in " ".join(report.notes)
    told = report.facts["nvml"]
    assert {"memory_mhz", "temperature_c", "power_w"} <= set(told)
    assert all(100 < mhz < 5000 for mhz in told.get("sm_mhz", told.get("idle_sm_mhz")))

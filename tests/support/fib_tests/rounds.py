"""Several calls in an exchange, as on a GPU, with real processes on the CPU.

These have no gate, so their calls wait for the release: all but the gate is as on a GPU.
"""

import pytest

from fib_judge import integrity, reference, timed
from fib_judge.integrity import Mode
from fib_judge.ring import Ring
from fib_tests.scripted import Apart
from flashinfer_bench.bench import memory
from flashinfer_bench.bench.executors.process import ProcessCandidate
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox

LIAR = """
import time, torch
from flashinfer_bench.bench.candidate import timed_calls
real = timed_calls._timed_on_host
timed_calls._timed_on_host = lambda call, wait: real(call, wait) / 4
def run(x, y):
    until = time.perf_counter() + 0.0003
    while time.perf_counter() < until:
        pass
    return x + y
"""
"""A solution that claims a quarter of what it takes."""

IDLE_ALONE = """
import time, torch
from flashinfer_bench.bench.candidate import timed_calls
real, rows, idle = timed_calls.TimedCalls.fire_round, [0], [False]
def fire_round(self, timer, subject, attached, request):
    rows[0] += len(request.slots) > 1 and not request.empty
    idle[0] = rows[0] > 2 and len(request.slots) == 1
    return real(self, timer, subject, attached, request)
timed_calls.TimedCalls.fire_round = fire_round
def run(x, y):
    return torch.zeros_like(x) if idle[0] else x + y
"""
"""A solution that does nothing in exchanges of one call, when it has seen longer ones."""

SLOW_ALONE = IDLE_ALONE.replace("> 2", "> 0").replace(
    "torch.zeros_like(x)", "time.sleep(0.05) or x + y"
)
"""A solution that takes longer in these, as those do whose calls overlap."""

_WHEN_ASKED = """
import torch
from flashinfer_bench.bench.candidate import timed_calls
calls, kept, timing = timed_calls.TimedCalls, [], [False]
real, told = calls.fire_round, calls._kept
def fire_round(self, *how):
    timing[0] = True
    kept.clear()
    try:
        return real(self, *how)
    finally:
        timing[0] = False
def work(x, y):
    return x + y, float((x * y).sum())
def run(x, y):
    if timing[0]:
        kept.append((x, y))
        return torch.empty_like(x), 0.0
    return work(x, y)
calls.fire_round = fire_round
calls.outputs_of = lambda self, call: list(work(*kept[call]))
"""

COMPUTES_WHEN_ASKED = _WHEN_ASKED
"""A solution that computes outputs, one of them a number, when it is asked for them."""

TELLS_OTHERS = (
    _WHEN_ASKED
    + """
calls._kept = lambda self, found: told(self, found[:1])
"""
)
"""… and says of each call that it has returned something else, so that it is asked."""


class Device(str):
    """A device that is the CPU to torch, and another one to the judge."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return other is self

    def __ne__(self, other):
        return other is not self


@pytest.fixture
def session_with_rounds(bench, session, monkeypatch):
    """``session_with_rounds(**changes)``: a run in which calls are made so."""
    made = memory.Memory
    monkeypatch.setattr(memory, "memory_on", lambda device, nbytes, fd=-1: made(nbytes, fd))
    monkeypatch.setattr(Ring, "wait", lambda ring: None)
    monkeypatch.setattr(Ring, "flush", lambda ring: None)
    monkeypatch.setattr(ProcessCandidate, "has_gate", True)
    monkeypatch.setattr(timed, "_LONG_PATIENCE_S", 0.001)
    monkeypatch.setattr(timed, "_LONG_MS", 1e9)  # calls are short, however busy the machine
    # Without a gate all calls wait, and would be made alone; and the host's time varies.
    monkeypatch.setattr(timed.Course, "_settled", lambda course, _: Mode(False, course._most))
    monkeypatch.setattr(integrity, "_MORE_ALONE_MS", 0.1)
    for module in (timed, reference):
        monkeypatch.setattr(module, "free_memory", lambda device: 1 << 30)

    def start(apart=True, **changes):
        pool = WorkerPool(bench.executor, keep=0, sandbox=(Apart if apart else Sandbox)("off"))
        own = {"timer": "cpu", "timer_enqueues": True, "timer_version": None, "pool": pool}
        return session(device=Device("cpu"), **own, **changes)

    return start

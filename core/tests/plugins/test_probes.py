"""Probes: asked once, at the same time, within a limit, and believed only if they make sense."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.plugins import Availability, Catalog, TimerSpec
from flashinfer_bench.plugins.registry import Probe

LONG = 60.0  # a limit that no test waits for


@pytest.fixture
def probe(monkeypatch):
    """Put a function where a probe can be imported from; returns its path."""

    def place(function, name="check"):
        module = types.ModuleType("probed_module")
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "probed_module", module)
        return f"probed_module:{name}"

    return place


def test_many_threads_that_ask_get_one_answer(probe):
    calls = []

    def check():
        calls.append(1)
        return Availability(True, f"call {len(calls)}")

    asked = Probe(probe(check), LONG)
    answers = at_once(8, asked.answer)
    assert calls == [1]
    assert {answer.reason for answer in answers} == {"call 1"}


def test_a_probe_that_takes_too_long_counts_as_no_and_stays_no(probe):
    release, finished = threading.Event(), threading.Event()

    def check():
        release.wait(LONG)
        finished.set()
        return Availability(True)

    asked = Probe(probe(check), 0.05)
    answer = asked.answer()
    assert not answer
    assert answer.reason == "the probe probed_module:check did not answer within 0.05 s"
    assert answer.remedy == "FIB_PROBE_TIMEOUT_S sets the limit"
    assert asked.failure is None
    release.set()
    assert finished.wait(LONG)
    asked._thread.join(LONG)
    assert asked.answer() is answer  # what came too late changes nothing


def test_probes_are_asked_at_the_same_time(probe):
    together = threading.Barrier(12)

    def check():
        together.wait(LONG)  # passes only once all twelve are in here
        return Availability(True)

    path = probe(check)
    timers = [
        TimerSpec(name=f"t{n}", devices=("cpu",), factory="m:T", probe=path) for n in range(12)
    ]
    catalog = Catalog.of(*timers, timeout_s=LONG)
    catalog.check_all()
    assert all(entry.availability() for entry in catalog)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("bad\nluck"), "ValueError: bad luck"),
        (SystemExit(3), "SystemExit: it called sys.exit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (type("PanicException", (BaseException,), {})("panic"), "PanicException: panic"),
    ],
)
def test_whatever_a_probe_raises_is_a_no(probe, error, told):
    def check():
        raise error

    asked = Probe(probe(check), LONG)
    assert asked.answer().reason == f"the probe probed_module:check failed: {told}"
    assert asked.failure is error


def test_no_thread_to_be_had_is_a_no(probe, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    asked = Probe(probe(lambda: Availability(True)), LONG)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asked.answer().reason == "the probe could not be started: can't start new thread"
    assert asked.answer() is asked.answer()

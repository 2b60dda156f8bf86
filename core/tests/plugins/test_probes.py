"""Probes: asked once, at the same time, within a limit, and believed only if they make sense."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from flashinfer_bench.plugins import Availability
from flashinfer_bench.plugins.probes import Probe, ask, ask_all

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


def test_the_answer_is_what_the_probe_says(probe):
    said = Availability(False, "no device", "buy one")
    asked = Probe(probe(lambda: said), LONG)
    assert asked.answer() is said
    assert asked.failure is None


def test_a_probe_is_asked_once(probe):
    calls = []

    def check():
        calls.append(threading.current_thread())
        return Availability(True)

    asked = Probe(probe(check), LONG)
    assert asked.answer() is asked.answer()
    (thread,) = calls
    assert thread.daemon
    assert not thread.is_alive()


def test_many_threads_that_ask_get_one_answer(probe):
    calls = []

    def check():
        calls.append(1)
        return Availability(True, f"call {len(calls)}")

    asked = Probe(probe(check), LONG)
    start = threading.Barrier(8)
    answers = []

    def ask_it():
        start.wait()
        answers.append(asked.answer())

    threads = [threading.Thread(target=ask_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert {answer.reason for answer in answers} == {"call 1"}


def test_starting_does_not_wait(probe):
    release = threading.Event()

    def check():
        release.wait(LONG)
        return Availability(True)

    asked = Probe(probe(check), LONG)
    asked.start()
    asked.start()
    release.set()  # reached, so it did not wait
    assert asked.answer()


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
    probes = [Probe(path, LONG) for _ in range(12)]
    ask_all(probes)
    assert all(each.answer() for each in probes)


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


@pytest.mark.parametrize("value", [True, None, "yes", (True, "")])
def test_an_answer_that_is_none_is_a_no(probe, value):
    answer, failure = ask(probe(lambda: value))
    assert f"it returned {type(value).__name__}, not Availability" in answer.reason
    assert isinstance(failure, TypeError)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("module_that_is_not_there:check", "ModuleNotFoundError"),
        ("json:no_such_function", "AttributeError"),
        ("json:__name__", "TypeError"),
    ],
)
def test_a_probe_that_is_not_there_is_a_no(path, told):
    answer = Probe(path, LONG).answer()
    assert not answer
    assert told in answer.reason


def test_an_exception_that_cannot_be_shown_is_still_told(probe):
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def check():
        raise Unspeakable

    answer, _ = ask(probe(check))
    assert "Unspeakable: (its message cannot be shown)" in answer.reason


def test_no_thread_to_be_had_is_a_no(probe, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    asked = Probe(probe(lambda: Availability(True)), LONG)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asked.answer().reason == "the probe could not be started: can't start new thread"
    assert asked.answer() is asked.answer()

"""What a call costs on a device, where the reference does not show it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest

from fib_judge.evaluate import evaluate_solution
from fib_judge.integrity import Normal, Normals
from fib_judge.reference import with_plain_calls
from flashinfer_bench.bench.executors.base import CandidateCrashed

HONEST = "def run(x):\n    return x * 2\n"
PLAIN = "one_small_kernel"
# All the device's work is done when such a call returns: the fakes need 0.1 ms otherwise.
WAITS_FOR_THE_DEVICE = "OVERHEAD_MS = 0.0\n" + HONEST


@pytest.fixture
def prepare(prepare):
    return partial(prepare, config={"iterations": 20})


def loads_of(executor, name):
    return sum(loaded == name for _, loaded in executor.of("load"))


class TestNormals:
    def test_a_reference_that_hides_it(self, prepare):
        normal = prepare(WAITS_FOR_THE_DEVICE, device="cuda:0").normal
        assert normal.overhead.median_ms == pytest.approx(0.1)
        # Nothing else is learned there: the inputs are others.
        assert normal.exchange.median_ms == pytest.approx(0.2)

    def test_on_the_cpu_a_call_ends_when_it_returns(self, prepare, executor):
        normal = prepare(WAITS_FOR_THE_DEVICE).normal
        assert normal.overhead.median_ms == pytest.approx(0.0)
        assert not loads_of(executor, PLAIN)

    def test_it_is_asked_once_for_a_device(self, prepare, session, executor):
        running = session(device="cuda:0")
        prepare(WAITS_FOR_THE_DEVICE, running=running)
        prepare(HONEST, running=running)
        assert loads_of(executor, PLAIN) == 1
        assert list(running.plain_calls) == ["cuda:0"]

    def test_if_it_cannot_be_learned(self, session, prepare, monkeypatch, caplog):
        baseline = prepare()

        def crash(*problem):
            raise CandidateCrashed("was killed by SIGSEGV", stage="time", exit_code=-11)

        monkeypatch.setattr("fib_judge.reference.few_calls", crash)
        normals = Normals(Normal(0.0, 0.0, 9), Normal(0.2, 0.0, 9), Normal(1.0, 0.0, 9))
        running = session(device="cuda:1")
        with caplog.at_level(logging.WARNING):
            assert with_plain_calls(running, baseline, normals) is normals
        assert "cuda:1: what a plain call costs is not known: " in caplog.text
        assert not running.plain_calls


class TestVerdicts:
    @pytest.mark.parametrize(("hidden_ms", "disputed"), [(0.0, False), (0.09, True)])
    def test_who_shows_it_has_hidden_nothing(
        self, hidden_ms, disputed, prepare, session, settings, problems, evaluator
    ):
        running = session(device="cuda:0")
        baseline = prepare(WAITS_FOR_THE_DEVICE, running=running)
        source = f"SAMPLES = [0.3, 0.301]\nHIDDEN_MS = {hidden_ms}\n" + HONEST
        config = settings(iterations=20)
        judged = replace(baseline, evaluator=evaluator, config=config)
        evaluation = evaluate_solution(running, problems.solution(source), judged)
        assert evaluation.status == "PASSED"
        assert ("disputed" in evaluation.correctness.extra["integrity"]) is disputed

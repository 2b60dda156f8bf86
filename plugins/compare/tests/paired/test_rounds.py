"""Comparing with several calls in an exchange, as on a GPU, on the CPU."""

import pytest

from fib_compare.paired.comparer import CompareSettings, ContestRun
from fib_compare.paired.result import Contest
from fib_compare.paired.sides import CheckSupply
from fib_compare.stats import Verdict
from fib_judge import integrity
from fib_judge.timed import CALLS_ALONE
from fib_tests.rounds import IDLE_ALONE, LIAR
from flashinfer_bench.bench.evaluators import DefaultEvaluator
from flashinfer_bench.data import Workload

pytestmark = pytest.mark.torch

SPIN = """
import time, torch
def run(x, y):
    until = time.perf_counter() + {seconds}
    while time.perf_counter() < until:
        pass
    return x + y
"""


@pytest.fixture
def compare(session_with_rounds, definition_of, solution_of, settings):
    """``compare(baseline, candidate, **wanted)``: compare two sources."""

    def run(baseline, candidate, **wanted):
        inputs = {name: {"type": "random"} for name in "xy"}
        workload = Workload(axes={"n": 1000}, inputs=inputs, uuid="w")
        both = solution_of(baseline), solution_of(candidate)
        contest = Contest(definition_of(), workload, *both)
        held = session_with_rounds(profile_baseline=False)
        limits = CompareSettings(**{"max_seconds": 20.0, **wanted})
        return ContestRun(held, contest, DefaultEvaluator(), settings(), limits).run()

    return run


def test_a_difference_is_found(compare, monkeypatch):
    # On a busy machine launches would be discarded.
    for name in ("_SLACK_MS", "_MORE_ALONE_MS"):
        monkeypatch.setattr(integrity, name, 1e3)
    found = compare(SPIN.format(seconds=0.002), SPIN.format(seconds=0.004))
    assert found.obstacle is None, found.obstacle
    assert 1.3 < found.comparison.ratio.estimate < 3
    assert found.comparison.verdict in (Verdict.SLOWER, Verdict.AMBIGUOUS)


def test_calls_made_alone_have_values_of_their_own(compare, monkeypatch):
    """Also where checks are used again: a launch sees none of them twice."""
    seen, take = [], CheckSupply.take

    def note(self, count):
        groups, alone = take(self, count)
        seen.append([check.number for checks in (*groups, alone) for check in checks])
        assert len(alone) == CALLS_ALONE
        return groups, alone

    monkeypatch.setattr(CheckSupply, "take", note)
    monkeypatch.setattr("fib_compare.paired.sides._TIME_SHARE", -1.0)
    # Of effects so large a few launches tell that there is none.
    compare(SPIN.format(seconds=0.0001), SPIN.format(seconds=0.0001), min_effect=0.9)
    assert len(seen) > 1
    assert all(len(set(numbers)) == len(numbers) for numbers in seen)


def test_calls_made_alone_are_compared(compare):
    found = compare(SPIN.format(seconds=0.00005), IDLE_ALONE)
    assert (found.obstacle.role, found.obstacle.kind) == ("candidate", "wrong"), found.obstacle
    assert "a call made alone gave different outputs" in found.obstacle.message


def test_a_lie_does_not_win(compare):
    found = compare(SPIN.format(seconds=0.0003), LIAR)
    assert found.comparison is None or found.comparison.verdict is not Verdict.FASTER

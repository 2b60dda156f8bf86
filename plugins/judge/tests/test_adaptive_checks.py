"""Looks at timed calls whose number nobody knows beforehand."""

import random
from collections import Counter

import pytest

from fib_judge.stopping import RelativeStandardError
from fib_judge.timed import secret_batch
from flashinfer_bench.data import EvaluationStatus


def test_secret_batch_every_place_has_the_same_chance():
    seen = Counter()
    checks = [object() for _ in range(8)]
    for seed in range(4000):
        schedule = secret_batch(20, 10, checks, random.Random(seed))
        seen.update(place for place, check in schedule.items() if check is not None)
    assert set(seen) == set(range(20, 30))
    assert max(seen.values()) < 1.3 * min(seen.values())


@pytest.fixture
def judge(judging):
    """Evaluate a solution, given as source, with a rule that adapts."""
    reference = "def run(x): return x * 2\nSAMPLES = [2.0, 2.1]"
    config = {"stop_rule": "rse", "min_samples": 20, "max_samples": 40, "warmup_runs": 2}
    return judging(n=200, reference=reference, config=config)


class TestEvaluation:
    def test_what_is_recorded(self, judge):
        found = judge("def run(x): return x * 2\nSAMPLES = [2.0, 2.1]")
        assert found.status is EvaluationStatus.PASSED
        told = found.provenance
        assert told.stop_rule == "rse"
        assert told.timing["ended_by"] in ("rule", "max_samples")
        assert set(told.timing["parameters"]) == set(RelativeStandardError().values)
        assert 20 <= len(found.performance.samples_ms) <= 40
        note = found.correctness.extra["integrity"]
        assert note["timed_calls"] == len(found.performance.samples_ms)
        assert note["checked_calls"] >= 1

    def test_wrong_when_time_is_short(self, judge):
        source = """
import time
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 4 else x * 3
def on_time(): time.sleep(0.03)
"""
        for _ in range(5):
            found = judge(source, config={"max_seconds": 0.1})
            assert found.status is EvaluationStatus.INCORRECT_NUMERICAL

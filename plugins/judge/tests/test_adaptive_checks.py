"""Looks at timed calls whose number nobody knows beforehand."""

import pytest

from fib_judge.stopping import RelativeStandardError
from flashinfer_bench.data import EvaluationStatus


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

    def test_wrong_after_as_many_calls_as_there_are_checks(self, judge):
        """However many there are, those that follow are compared as often."""
        source = """
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 250 else x * 3
SAMPLES = [2.0, 9.0, 3.0, 7.0]
"""
        found = judge(source, config={"min_samples": 400, "max_samples": 400})
        assert found.status is EvaluationStatus.INCORRECT_NUMERICAL

    def test_honest_when_time_is_short(self, judge):
        source = "import time\ndef run(x): return x * 2\ndef on_time(): time.sleep(0.01)\n"
        found = judge(source, config={"max_seconds": 0.1})
        assert found.status is EvaluationStatus.PASSED
        note = found.correctness.extra["integrity"]
        assert note["checked_calls"] == note["timed_calls"] < 16, "all, as they are few"

"""Scores of solutions."""

import math

import pytest

from flashinfer_bench.data import SpeedupMetrics

NAME = "gemm_n8_k4"


def invalid(trace, latency):
    """Return the trace with a latency that no file could hold."""
    performance = trace.evaluation.performance.model_copy(update={"latency_ms": latency})
    evaluation = trace.evaluation.model_copy(update={"performance": performance})
    return trace.model_copy(update={"evaluation": evaluation})


# ------------------------------------------------------------------------------ score of a solution


def test_the_score_is_the_mean_speedup_over_the_baseline(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"),
        make.run("baseline", 9.0, uuid="w2"),
        make.run("alice", 2.0, uuid="w1"),
        make.run("alice", 3.0, uuid="w2"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert score == SpeedupMetrics(
        avg_speedup=2.5,
        definitions=1,
        workloads=2,
        success_rate=1.0,
        win_rate=1.0,
        best_solutions={NAME: "alice_v1"},
    )


def test_only_workloads_that_the_baseline_passed_take_part(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"),
        make.run("baseline", uuid="w2", status="TIMEOUT"),
        make.run("alice", 2.0, uuid="w1"),
        make.run("alice", 0.1, uuid="w2"),
        make.run("alice", 0.1, uuid="w3"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert (score.avg_speedup, score.workloads) == (2.0, 1)


@pytest.mark.parametrize(
    "status", ["TIMEOUT", "COMPILE_ERROR", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE"]
)
def test_one_failure_makes_the_score_zero(make, status):
    trace_set = make.trace_set(
        make.run("baseline", 4.0),
        make.run("alice", 2.0),
        make.run("alice", uuid="w2", status=status),
    )
    assert trace_set.get_solution_score("alice_v1").avg_speedup == 0.0


def test_what_has_no_score(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"), make.run("alice", 2.0, uuid="w2")
    )
    for name in ("baseline_v1", "unknown", "alice_v1"):  # which has no workload in common
        assert trace_set.get_solution_score(name) is None
    assert make.trace_set().get_solution_score("alice_v1") is None


def test_the_baseline_may_be_another_author(make):
    trace_set = make.trace_set(make.run("baseline", 4.0), make.run("alice", 2.0))
    score = trace_set.get_solution_score("baseline_v1", baseline_author="alice")
    assert score.avg_speedup == 0.5
    assert trace_set.get_solution_score("alice_v1", baseline_author="alice") is None


def test_a_missing_baseline_is_an_error(make):
    trace_set = make.trace_set(authors=("alice",))
    with pytest.raises(ValueError, match="no solution by the baseline author 'baseline'") as caught:
        trace_set.get_solution_score("alice_v1")
    assert NAME in str(caught.value)


def test_two_baselines_are_an_error(make):
    trace_set = make.trace_set()
    trace_set.solutions[NAME].append(make.solution("second", author="baseline"))
    with pytest.raises(ValueError, match=r"2 solutions \(baseline_v1, second\)"):
        trace_set.get_solution_score("alice_v1")


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, math.inf])
def test_a_pass_without_a_real_latency_is_an_error(make, latency):
    trace_set = make.trace_set(make.run("baseline", 4.0), invalid(make.run("alice"), latency))
    with pytest.raises(ValueError, match=f"solution 'alice_v1' has a latency of {latency} ms"):
        trace_set.get_solution_score("alice_v1")

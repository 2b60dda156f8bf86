"""Scores of solutions, and the best of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report import best_solutions, score_solutions
from flashinfer_bench.report.scores import natural_order


def test_a_score_sums_up_the_workloads(make_result):
    results = [
        make_result(workload="w1", latency_ms=1.0, reference_latency_ms=2.0),
        make_result(workload="w2", latency_ms=4.0, reference_latency_ms=2.0),
        make_result(workload="w3", latency_ms=2.0, reference_latency_ms=2.0),
        make_result(workload="w4", status="RUNTIME_ERROR"),
    ]
    (score,) = score_solutions(results)
    assert (score.workloads, score.passed, score.all_passed) == (4, 3, False)
    assert score.statuses == {"PASSED": 3, "RUNTIME_ERROR": 1}
    assert score.median_latency_ms == 2.0
    assert score.mean_latency_ms == pytest.approx(2.0)
    assert score.speedup == pytest.approx(1.0)
    assert (score.min_speedup, score.max_speedup) == (0.5, 2.0)


def test_a_score_of_failures_has_no_numbers(make_result):
    (score,) = score_solutions([make_result(status="TIMEOUT")])
    assert score.median_latency_ms is score.speedup is score.min_speedup is None
    assert score.max_absolute_error is None


def test_the_worst_error_is_kept_and_nan_is_worst(make_result):
    errors = [1e-3, math.nan, 1e-2]
    results = [make_result(workload=str(error), max_absolute_error=error) for error in errors]
    assert math.isnan(score_solutions(results)[0].max_absolute_error)
    assert score_solutions([results[0], results[2]])[0].max_absolute_error == 1e-2


def test_devices_are_kept_apart(make_result):
    scores = score_solutions([make_result(hardware="A"), make_result(hardware="B")])
    assert [score.hardware for score in scores] == ["A", "B"]


def test_the_best_comes_first(make_result):
    results = [
        make_result("slow", latency_ms=3.0),
        make_result("failing", status="TIMEOUT"),
        make_result("fast", latency_ms=1.0),
        make_result("partly", latency_ms=0.1),
        make_result("partly", workload="w2", status="TIMEOUT"),
    ]
    assert [s.solution for s in score_solutions(results)] == ["fast", "slow", "partly", "failing"]


def test_more_workloads_beat_a_lower_latency(make_result):
    results = [
        make_result("thorough", workload="w1", latency_ms=2.0),
        make_result("thorough", workload="w2", latency_ms=2.0),
        make_result("narrow", workload="w1", latency_ms=1.0),
    ]
    (best,) = best_solutions(score_solutions(results))
    assert (best.score.solution, best.tried, best.runner_up) == ("thorough", 2, None)
    assert best.lead is None


def test_a_solution_that_failed_anywhere_cannot_be_the_best(make_result):
    results = [
        make_result("cheat", workload="w1", latency_ms=0.001),
        make_result("cheat", workload="w2", status="INCORRECT_NUMERICAL"),
        make_result("honest", workload="w1"),
        make_result("honest", workload="w2"),
    ]
    (best,) = best_solutions(score_solutions(results))
    assert best.score.solution == "honest"


def test_latency_decides_not_the_recorded_speedup(make_result):
    results = [
        make_result("fast", latency_ms=1.0, reference_latency_ms=2.0),
        make_result("lucky", latency_ms=1.5, reference_latency_ms=9.0),
    ]
    (best,) = best_solutions(score_solutions(results))
    assert best.score.solution == "fast"
    assert best.runner_up is not None
    assert best.runner_up.solution == "lucky"
    assert best.lead == pytest.approx(1.5)


def test_each_device_has_its_best(make_result):
    results = [
        make_result("a", hardware="A", latency_ms=1.0),
        make_result("b", hardware="A", latency_ms=2.0),
        make_result("b", hardware="B", latency_ms=2.0),
    ]
    found = best_solutions(score_solutions(results))
    assert [(b.score.hardware, b.score.solution) for b in found] == [("A", "a"), ("B", "b")]


def test_a_definition_that_nobody_solved_has_no_best(make_result):
    assert best_solutions(score_solutions([make_result(status="COMPILE_ERROR")])) == []


def test_the_order_of_scores_does_not_matter(make_result):
    scores = score_solutions([make_result("a", latency_ms=2.0), make_result("b", latency_ms=1.0)])
    assert best_solutions(reversed(scores)) == best_solutions(scores)


def test_numbers_in_names_count_as_numbers():
    names = ["gemm_n4096", "gemm_n512", "gemm", "7b", "gemm_n512_k8", "gemm_n512_k64"]
    assert sorted(names, key=natural_order) == [
        "gemm",
        "gemm_n512",
        "gemm_n512_k8",
        "gemm_n512_k64",
        "gemm_n4096",
        "7b",
    ]


@given(st.lists(st.text(), max_size=20))
def test_any_names_can_be_ordered(names):
    keys = [natural_order(name) for name in sorted(names, key=natural_order)]
    assert all(a <= b for a, b in pairwise(keys))

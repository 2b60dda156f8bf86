"""Scores of solutions, and the best of them."""

import json
import math

import pytest

from fib_report.scores import natural_order
from flashinfer_bench.data.run_source import Clock, read_details
from flashinfer_bench.report import best_solutions, score_solutions

EVENT, CUPTI = Clock("cuda_event", "cold", "rse", "beside"), Clock("cupti", "cold", "rse", "beside")


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
    (failed,) = score_solutions(results[3:])
    assert failed.median_latency_ms is failed.speedup is failed.latency is None


def test_the_worst_error_is_kept_and_nan_is_worst(make_result):
    errors = [1e-3, math.nan, 1e-2]
    results = [make_result(workload=str(error), max_absolute_error=error) for error in errors]
    assert math.isnan(score_solutions(results)[0].max_absolute_error)
    assert score_solutions([results[0], results[2]])[0].max_absolute_error == 1e-2


def test_the_best_comes_first(make_result):
    results = [
        make_result("slow", latency_ms=3.0),
        make_result("failing", status="TIMEOUT"),
        make_result("fast", latency_ms=1.0),
        make_result("partly", latency_ms=0.1),
        make_result("partly", workload="w2", status="TIMEOUT"),
    ]
    assert [s.solution for s in score_solutions(results)] == ["fast", "slow", "partly", "failing"]


def test_what_is_disputed_is_not_ranked(make_result):
    doubt = json.dumps([None, {"disputed": "hidden time", "unseen_ms": 0.5}])
    results = [
        make_result("doubtful", latency_ms=0.5, note=doubt),
        make_result("doubtful", workload="w2", latency_ms=0.5),
        make_result("slow", latency_ms=3.0),
        make_result("fast", latency_ms=1.0),
    ]
    scores = score_solutions(results)
    assert [(one.solution, one.rank, one.disputed) for one in scores] == [
        *(("fast", "1", 0), ("slow", "2", 0), ("doubtful", None, 1))
    ]
    (best,) = best_solutions(scores)
    assert best.score.solution == "fast"
    assert best_solutions(score_solutions(results[:2])) == []


def test_latency_decides_not_the_recorded_speedup(make_result):
    results = [
        make_result("fast", latency_ms=1.0, reference_latency_ms=2.0),
        make_result("lucky", latency_ms=1.5, reference_latency_ms=9.0),
    ]
    (best,) = best_solutions(score_solutions(results))
    assert best.score.solution == "fast"
    assert best.runner_up is not None
    assert best.runner_up.solution == "lucky"
    assert best.measured_lead.value == pytest.approx(1.5)


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


def test_there_is_a_best_for_each_timer(make_result):
    runs = [
        make_result("alice_1", clock=EVENT, latency_ms=1.0),
        make_result("bob_1", clock=CUPTI, latency_ms=0.1),
        make_result("alice_1", clock=CUPTI, latency_ms=0.2),
    ]
    best = best_solutions(score_solutions(runs))
    assert [(one.score.timer, one.score.solution, one.tried) for one in best] == [
        ("cuda_event", "alice_1", 1),
        ("cupti", "bob_1", 2),
    ]


def test_overlapping_intervals_share_a_rank(make_result):
    runs = [
        make_result("a_1", latency_ms=1.0, interval_ms=(0.9, 1.1)),
        make_result("b_1", latency_ms=1.05, interval_ms=(1.0, 1.2)),
        make_result("c_1", latency_ms=2.0, interval_ms=(1.9, 2.1)),
        make_result("d_1", status="TIMEOUT"),
    ]
    scores = score_solutions(runs)
    assert [(one.solution, one.rank) for one in scores] == [
        ("a_1", "=1"),
        ("b_1", "=1"),
        ("c_1", "3"),
        ("d_1", None),
    ]
    (best,) = best_solutions(scores)
    assert [one.solution for one in best.ties] == ["b_1"]
    assert best.measured_lead.low < 1.0 < best.measured_lead.value == pytest.approx(1.05)


def test_what_a_score_tells_of_its_samples(make_result):
    runs = [
        make_result(
            workload="w1", samples_ms=(1.0, 2.0, 9.0), dropped=1, dropped_rows=((2, 3),),
            clock=EVENT, interval_ms=(1.0, 2.0),
        ),
        make_result(workload="w2", samples_ms=(1.0,), clock=EVENT._replace(reference="before")),
        make_result(workload="w3", status="TIMEOUT"),
    ]  # fmt: skip
    (score,) = score_solutions(runs)
    assert (score.samples, score.dropped, score.without_interval) == (4, 1, 1)
    assert score.references == {"before": 1, "beside": 1}
    assert score.stop_rules == ("rse",)
    assert score.latency.ends is None
    (details,) = read_details(runs[:1])
    assert (details.counted_ms, details.dropped_ms) == ((1.0, 2.0), (9.0,))

"""Scores of solutions, the best of them, and the intervals that decide their ranks."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.scores import (
    Measured,
    latency_of,
    mean_of,
    natural_order,
    rank_labels,
    ranks,
    ratio_of,
    speedup_of,
)
from flashinfer_bench.data.run_source import Clock, read_details
from flashinfer_bench.report import best_solutions, score_solutions
from flashinfer_bench.stats.intervals import median_interval, ratio_interval

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
    assert score.latency.value == pytest.approx(2.0)
    assert score.speedup.value == pytest.approx(1.0)
    assert (score.min_speedup, score.max_speedup) == (0.5, 2.0)
    (failed,) = score_solutions(results[3:])
    assert failed.speedup is failed.latency is None


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
    in_order = ["gemm", "gemm_n512", "gemm_n512_k8", "gemm_n512_k64", "gemm_n4096", "7b"]
    assert sorted(names, key=natural_order) == in_order


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
    found = {one.solution: one.rank for one in scores}
    assert found == {"a_1": "=1", "b_1": "=1", "c_1": "3", "d_1": None}
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


# ------------------------------------------------------------------------------------ intervals


@st.composite
def figures(draw):
    value = draw(st.floats(1e-3, 1e3))
    ends = (value * draw(st.floats(0.1, 1.0)), value * draw(st.floats(1.0, 10.0)))
    return Measured(value, draw(st.sampled_from([ends, ends, None])))


def measured(samples):
    found = median_interval(samples)
    return Measured(found.estimate, (found.low, found.high))


@pytest.mark.parametrize("count", [3, 30, 150])
def test_a_ratio_is_that_of_the_samples(count):
    rng = random.Random(count)
    one, other = ([rng.lognormvariate(m, 0.2) for _ in range(count)] for m in (0.0, 0.5))
    expected = ratio_interval(one, other)
    found = ratio_of(measured(one), measured(other))
    assert found.value == pytest.approx(expected.estimate)
    assert found.ends == pytest.approx((expected.low, expected.high))


@given(figures(), figures())
def test_a_ratio_lies_in_its_interval(one, other):
    found = ratio_of(one, other)
    assert (found.ends is None) == (one.ends is None or other.ends is None)
    assert found.low <= found.value * (1 + 1e-12)
    assert found.high >= found.value * (1 - 1e-12)
    back = ratio_of(other, one)
    assert back.low == pytest.approx(1 / found.high)
    assert back.high == pytest.approx(1 / found.low)


def test_an_interval_from_zero_has_no_upper_bound_as_a_divisor():
    found = ratio_of(Measured(1.0, (1.0, 1.0)), Measured(1.0, (0.0, 2.0)))
    assert found.ends == (0.5, math.inf)


@given(st.lists(figures(), min_size=1, max_size=8))
def test_a_mean_is_more_exact_than_the_worst(several):
    found = mean_of(several)
    assert min(one.value for one in several) <= found.value * (1 + 1e-9)
    if any(one.ends is None for one in several):
        assert found.ends is None
        return
    worst = max(one.high / one.value for one in several)
    assert found.high / found.value <= worst * (1 + 1e-9)
    assert found.low <= found.value <= found.high or math.isclose(found.low, found.high)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_there_is_no_mean(values):
    assert mean_of([Measured(value) for value in values]) is None


@given(st.lists(figures(), max_size=12))
def test_ranks_count_what_is_faster_beyond_doubt(several):
    expected = [1 + sum(other.high < one.low for other in several) for one in several]
    assert ranks(several) == expected


def test_a_chain_of_overlaps():
    chain = [Measured(1.0, (0.9, 1.1)), Measured(1.15, (1.05, 1.25)), Measured(1.3, (1.2, 1.4))]
    assert rank_labels(ranks(chain)) == ["=1", "=1", "2"]


def test_figures_of_a_result(make_result):
    result = make_result(interval_ms=(0.9, 1.2), speedup_interval=(1.5, 2.5))
    assert latency_of(result) == Measured(1.0, (0.9, 1.2))
    assert speedup_of(result) == Measured(2.0, (1.5, 2.5))
    assert latency_of(make_result(status="TIMEOUT")) is None
    assert speedup_of(make_result(reference_latency_ms=None)) is None

"""Scores of solutions, the best of them, and what there is in a dataset."""

from __future__ import annotations

import math

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock, read_details
from flashinfer_bench.report import Selection, best_solutions, score_solutions, summarize
from flashinfer_bench.report.scores import natural_order

ALL = Selection()
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


# ------------------------------------------------------------------------------------- summaries


@pytest.fixture
def two(maker):
    """Two definitions; the second has no solution by ``baseline``, and a definition is gone."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", uuid="w1", op_type="gemm")
    maker.trace("bob_triple", definition="triple", status="TIMEOUT", hardware="NVIDIA H200")
    maker.trace("lost", definition="lost", hardware="NVIDIA H200")
    return TraceSet.from_path(maker.root)


def test_counts(two):
    found = summarize(two, ALL)
    counts = {one.definition: one for one in found.definitions}
    assert list(counts) == ["double", "lost", "triple"]
    double = counts["double"]
    assert (double.solutions, double.workloads, double.traces) == (2, 2, 4)
    assert (double.passed, double.failed) == (4, 0)
    assert (counts["triple"].passed, counts["triple"].failed) == (0, 1)
    assert (counts["lost"].op_type, counts["lost"].solutions) == ("", 0)
    assert found.totals() == {
        "definitions": 3,
        "solutions": 3,
        "workloads": 3,
        "traces": 6,
        "passed": 5,
        "failed": 1,
    }
    assert found.statuses == {"PASSED": 5, "TIMEOUT": 1}


def test_ranking(two):
    found = summarize(two, ALL)
    (rank,) = found.rankings
    assert (rank.hardware, rank.author, rank.speedup) == ("Test CPU", "alice", 4.0)
    assert (rank.definitions, rank.workloads) == (1, 2)
    assert "baseline" in found.unranked["triple"]  # a reason, and no error


def test_another_baseline_or_none(two):
    (rank,) = summarize(two, ALL, baseline_author="alice").rankings
    assert (rank.author, rank.speedup) == ("baseline", 0.25)
    found = summarize(two, ALL, baseline_author="nobody")
    assert found.rankings == ()
    assert set(found.unranked) >= {"double", "triple"}


def test_devices_are_ranked_apart(maker):
    maker.sound()
    for uuid in ("w1", "w2"):
        maker.trace("baseline_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
        maker.trace("alice_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
    found = summarize(TraceSet.from_path(maker.root), ALL)
    assert [(r.hardware, r.speedup) for r in found.rankings] == [
        ("Fast CPU", 1.0),
        ("Test CPU", 4.0),
    ]


@pytest.mark.parametrize(
    ("selection", "names", "traces"),
    [
        (Selection(definitions=("double",)), ["double"], 4),
        (Selection(op_types=("gemm",)), ["triple"], 1),
        (Selection(hardware=("h200",)), ["double", "lost", "triple"], 2),
    ],
)
def test_selection(two, selection, names, traces):
    found = summarize(two, selection)
    assert [one.definition for one in found.definitions] == names
    assert found.totals()["traces"] == traces


@pytest.fixture
def mixed(maker):
    """Two solutions by one timer; one of them also by another, which is three times as fast."""
    maker.sound()
    times = {"cuda_event": 0.9, "cupti": 0.3}
    for timer, latency in times.items():
        maker.trace(
            "alice_double", latency_ms=latency, provenance={
                "timer": timer,
                "stop_rule": "rse",
                "timing": {"cache": "cold", "reference": "before"},
            },
        )  # fmt: skip
    return TraceSet.from_path(maker.root)


def test_authors_are_ranked_apart(mixed):
    summary = summarize(mixed, Selection())
    timings = {(one.timer, one.reference): one.runs for one in summary.timings}
    assert timings == {("", ""): 4, ("cuda_event", "before"): 1, ("cupti", "before"): 1}
    assert {(one.timer, one.author) for one in summary.rankings} == {("", "alice")}

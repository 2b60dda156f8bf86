"""From traces to results, the choice among them, and what may be compared."""

import pytest

from fib_report.results import UNKNOWN_AUTHOR, UNTOLD, mixtures, split_by_setting
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock, read_details
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import collect_results, latest_results, with_intervals

EVENT, CUPTI = Clock("cuda_event", "cold", "rse", "beside"), Clock("cupti", "cold", "rse", "beside")
WARM = Clock("cupti", "warm")


@pytest.fixture
def trace_set(two_definitions):
    maker = two_definitions
    maker.trace("bob_triple", definition="triple", hardware="NVIDIA H200", status="TIMEOUT")
    return TraceSet.from_path(maker.root)


def test_traces_become_results(trace_set):
    results = collect_results(trace_set)
    assert len(results) == 5  # workloads are none
    good, bad = results[1], results[-1]
    assert (good.definition, good.op_type) == ("double", "op")
    assert (good.solution, good.author, good.language) == ("alice_double", "alice", "python")
    assert (good.workload, good.axes) == ("w1", {"N": 16})
    assert (good.latency_ms, good.reference_latency_ms, good.speedup) == (0.5, 2.0, 4.0)
    assert good.max_absolute_error == 1e-6
    assert good.passed
    assert (bad.status, bad.passed, bad.sample_total) == ("TIMEOUT", False, 0)
    assert bad.latency_ms is bad.speedup is bad.max_absolute_error is None


def test_traces_outlive_what_they_are_about(maker):
    maker.sound()
    maker.trace("gone", samples_ms=[1.0, 2.0])
    maker.trace(definition="lost", reference_ms=0.0, speedup=7.0)
    trace_set = TraceSet.from_path(maker.root)
    by_name = {(one.definition, one.solution): one for one in collect_results(trace_set)}
    gone, lost = by_name["double", "gone"], by_name["lost", "alice_double"]
    assert (gone.author, gone.language, gone.sample_total) == (UNKNOWN_AUTHOR, "", 2)
    assert (lost.op_type, lost.latency_ms, lost.speedup) == ("", 1.0, None)
    assert len(collect_results(trace_set, Selection(solutions=("gone",)))) == 1


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        ({}, 5),
        ({"definitions": ("triple",)}, 1),
        ({"definitions": ("double", "triple")}, 5),
        ({"op_types": ("op",)}, 4),
        ({"solutions": ("alice_double",)}, 2),
        ({"authors": ("baseline", "bob")}, 3),
        ({"hardware": ("h200",)}, 1),
        ({"hardware": ("h200", "cpu")}, 5),
        ({"hardware": ("tpu",)}, 0),
        ({"authors": ("alice",), "definitions": ("triple",)}, 0),
    ],
)
def test_selection(trace_set, selection, count):
    assert len(collect_results(trace_set, Selection(**selection))) == count


def test_the_latest_of_each_solution_workload_and_device_counts(make_result):
    old = make_result(timestamp="2026-01-01", status="COMPILE_ERROR")
    new = make_result(timestamp="2026-01-02")
    elsewhere = make_result(hardware="Other", timestamp="2026-01-01")
    other_workload = make_result(workload="w2", timestamp="2025-01-01")
    kept = latest_results([new, elsewhere, old, other_workload])
    assert set(map(id, kept)) == set(map(id, [new, elsewhere, other_workload]))


def test_a_pass_is_kept_once_with_each_timer_and_a_failure_replaces_all_before_it(make_result):
    runs = [
        make_result(clock=clock, timestamp=f"2026-01-0{day}")
        for day, clock in ((1, EVENT), (2, CUPTI), (3, EVENT), (4, WARM))
    ]
    assert latest_results(runs) == [runs[2], runs[1], runs[3]]
    failed = make_result(status="TIMEOUT", timestamp="2026-01-05")
    again = make_result(clock=CUPTI, timestamp="2026-01-06")
    assert latest_results([*runs, failed]) == [failed]
    assert latest_results([*runs, failed, again]) == [again]


def test_a_failure_counts_with_every_timer_of_its_definition(make_result):
    event, cupti = make_result(clock=EVENT), make_result("bob_1", clock=CUPTI)
    failed = make_result("carl_1", status="TIMEOUT")
    elsewhere = make_result("carl_2", status="TIMEOUT", definition="other")
    far = make_result("carl_3", status="TIMEOUT", hardware="Another")
    found = split_by_setting([event, cupti, failed, elsewhere, far])
    assert found == {
        ("Another", UNTOLD): [far],
        ("Test CPU", ("cuda_event", "cold")): [event, failed, elsewhere],
        ("Test CPU", ("cupti", "cold")): [cupti, failed, elsewhere],
    }
    assert mixtures(found) == {"Test CPU": [("cuda_event", "cold"), ("cupti", "cold")]}


def test_intervals_are_computed_from_samples_that_count(make_result):
    samples = (5.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    old = make_result(samples_ms=samples, dropped=1, dropped_rows=((0, 1),), latency_ms=1.3)
    bare = make_result("b_1")
    known = make_result("c_1", samples_ms=samples, interval_ms=(0.1, 9.0))
    failed = make_result("d_1", status="TIMEOUT")
    filled = with_intervals([old, bare, known, failed])
    low, high = filled[0].interval_ms
    assert 1.0 <= low <= 1.3 <= high <= 1.6
    assert filled[1:] == [bare, known, failed]


def test_intervals_of_stored_traces(maker):
    maker.sound()
    maker.trace(samples_ms=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    found = collect_results(TraceSet.from_path(maker.root))[-1:]
    (filled,) = with_intervals(found)
    assert filled.interval_ms is not None
    assert read_details([filled]) == read_details(found)

"""From traces to results, and the choice among them."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.report import Selection, collect_results, latest_results
from flashinfer_bench.report.results import UNKNOWN_AUTHOR


@pytest.fixture
def trace_set(maker):
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.trace("bob_triple", definition="triple", hardware="NVIDIA H200", status="TIMEOUT")
    return TraceSet.from_path(maker.root)


def test_a_trace_becomes_a_result(trace_set):
    result = collect_results(trace_set)[1]
    assert (result.definition, result.op_type) == ("double", "op")
    assert (result.solution, result.author, result.language) == ("alice_double", "alice", "python")
    assert (result.workload, result.axes) == ("w1", {"N": 16})
    assert (result.latency_ms, result.reference_latency_ms, result.speedup) == (0.5, 2.0, 4.0)
    assert result.max_absolute_error == 1e-6
    assert result.passed


def test_a_failure_has_no_numbers(trace_set):
    result = collect_results(trace_set)[-1]
    assert result.status == "TIMEOUT"
    assert not result.passed
    assert result.latency_ms is result.speedup is result.max_absolute_error is None
    assert result.samples_ms == ()


def test_workloads_are_no_results(maker):
    maker.sound()
    assert len(collect_results(TraceSet.from_path(maker.root))) == 4


def test_a_solution_that_is_gone_has_an_unknown_author(maker):
    maker.sound()
    maker.trace("gone")
    result = collect_results(TraceSet.from_path(maker.root))[-1]
    assert (result.author, result.language) == (UNKNOWN_AUTHOR, "")


def test_a_definition_that_is_gone_has_no_op_type(maker):
    maker.sound()
    maker.trace(definition="gone")
    assert collect_results(TraceSet.from_path(maker.root))[-1].op_type == ""


def test_without_a_time_of_the_reference_there_is_no_speedup(maker):
    maker.sound()
    maker.trace(uuid="w3", reference_ms=0.0, speedup=7.0)
    result = collect_results(TraceSet.from_path(maker.root))[-1]
    assert (result.latency_ms, result.reference_latency_ms, result.speedup) == (1.0, None, None)


def test_samples_are_kept(maker):
    maker.sound()
    maker.trace(samples_ms=[1.0, 2.0])
    assert collect_results(TraceSet.from_path(maker.root))[-1].samples_ms == (1.0, 2.0)


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


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"definitions": ("dubble",)}, "no definition 'dubble'"),
        ({"solutions": ("alice",)}, "no solution 'alice'"),
        ({"op_types": ("conv",)}, "no op_type 'conv'"),
        ({"authors": ("zoe", "alice", "yan")}, "no author 'zoe', 'yan'"),
    ],
)
def test_unknown_names_are_refused(trace_set, selection, words):
    with pytest.raises(UnknownNameError, match=words) as caught:
        collect_results(trace_set, Selection(**selection))
    assert caught.value.hint


def test_close_names_are_proposed(trace_set):
    with pytest.raises(UnknownNameError) as caught:
        collect_results(trace_set, Selection(definitions=("dubble",)))
    assert caught.value.hint == "did you mean: double"
    assert caught.value.unknown == ("dubble",)


def test_a_recorded_solution_may_be_selected_after_it_is_gone(maker):
    maker.sound()
    maker.trace("gone")
    found = collect_results(TraceSet.from_path(maker.root), Selection(solutions=("gone",)))
    assert len(found) == 1


def test_the_latest_of_each_solution_workload_and_device_counts(make_result):
    old = make_result(timestamp="2026-01-01", status="COMPILE_ERROR")
    new = make_result(timestamp="2026-01-02")
    elsewhere = make_result(hardware="Other", timestamp="2026-01-01")
    other_workload = make_result(workload="w2", timestamp="2025-01-01")
    kept = latest_results([new, elsewhere, old, other_workload])
    assert set(map(id, kept)) == set(map(id, [new, elsewhere, other_workload]))


def test_at_the_same_time_the_later_line_counts(make_result):
    first, second = make_result(latency_ms=1.0), make_result(latency_ms=2.0)
    assert latest_results([first, second]) == [second]

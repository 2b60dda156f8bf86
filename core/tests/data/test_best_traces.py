"""Finding the traces that are good enough, and the best of them."""

from __future__ import annotations

import pytest

NAME = "gemm_n8_k4"


def traces_of(make, *speedups, **common):
    return [make.trace(f"s{n}_v1", speedup=s, **common) for n, s in enumerate(speedups)]


def test_the_best_trace_has_the_highest_speedup(make):
    trace_set = make.trace_set(*traces_of(make, 1.0, 3.0, 2.0))
    assert trace_set.get_best_trace(NAME).solution == "s1_v1"


def test_what_is_disputed_is_not_the_best(make):
    doubt = {"integrity": {"disputed": "hidden time", "unseen_ms": 0.5}}
    errors = {"max_absolute_error": 0.0, "max_relative_error": 0.0, "extra": doubt}
    doubtful = make.trace("s9_v1", speedup=9.0, correctness=errors)
    trace_set = make.trace_set(doubtful, *traces_of(make, 1.0, 3.0))
    assert trace_set.get_best_trace(NAME).solution == "s1_v1"
    assert trace_set.filter_traces(NAME)[0] is doubtful, "it is right all the same"


def test_the_best_for_exactly_these_axes(make):
    traces = [*traces_of(make, 5.0, m=4), *traces_of(make, 1.0, m=8)]
    trace_set = make.trace_set(*traces)
    assert trace_set.get_best_trace(NAME, {"M": 8}) is traces[1]
    assert trace_set.get_best_trace(NAME, axes={"M": 9}) is None
    assert trace_set.get_best_trace(NAME, {}) is None
    assert trace_set.get_best_trace(NAME, {"M": 8, "N": 8}) is None
    assert trace_set.get_best_trace(NAME) is traces[0]


@pytest.mark.parametrize(
    ("error", "passes"),
    [(0.0, True), (0.01, True), (0.010001, False), (float("nan"), False), (float("inf"), False)],
)
def test_errors_are_bounded(make, error, passes):
    trace_set = make.trace_set(make.trace(error=error))
    assert (trace_set.get_best_trace(NAME) is not None) is passes
    assert bool(trace_set.filter_traces(NAME)) is passes


def test_absolute_and_relative_errors_have_their_own_bounds(make):
    errors = {"max_absolute_error": 0.5, "max_relative_error": 0.001}
    trace_set = make.trace_set(make.trace(correctness=errors))
    assert trace_set.filter_traces(NAME) == []
    assert len(trace_set.filter_traces(NAME, atol=0.5)) == 1
    assert trace_set.filter_traces(NAME, atol=0.5, rtol=0.0001) == []
    assert trace_set.get_best_trace(NAME, max_abs_error=0.5) is not None
    assert trace_set.get_best_trace(NAME, max_abs_error=0.5, max_rel_error=1e-4) is None

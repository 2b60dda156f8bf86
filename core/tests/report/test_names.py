"""Short names and labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.page.names import (
    clip,
    ratio_label,
    short_solution,
    workload_labels,
)


@pytest.mark.parametrize(
    ("value", "label"),
    [(1.0, "1×"), (0.5, "0.5×"), (2.345, "2.35×"), (1 / 64, "0.0156×"), (1 / 250, "1/250×"),
     (123.4, "123×"), (2048.0, "2,048×")],
)  # fmt: skip
def test_ratio_labels(value, label):
    assert ratio_label(value) == label


@given(st.text(max_size=100), st.integers(2, 50))
def test_clipped_text_fits_and_keeps_its_ends(text, width):
    clipped = clip(text, width)
    assert len(clipped) <= width
    if len(text) <= width:
        assert clipped == text
    else:
        assert clipped[0] == text[0]
        assert "…" in clipped


@pytest.mark.parametrize(
    ("name", "definition", "short"),
    [
        ("alice_gemm_n8_tiles", "gemm_n8", "alice_…_tiles"),
        ("gemm_n8_tiles", "gemm_n8", "…_tiles"),
        ("gemm_n8", "gemm_n8", "gemm_n8"),
        ("other", "gemm_n8", "other"),
        ("x" * 50, "gemm_n8", "x" * 17 + "…" + "x" * 16),
    ],
)
def test_short_names_of_solutions(name, definition, short):
    assert short_solution(name, definition) == short


def labels(make_result, *axes):
    results = [make_result(workload=f"w{i}", axes=one) for i, one in enumerate(axes)]
    return workload_labels(results)


def test_workloads_are_named_by_the_axes_that_differ(make_result):
    found = labels(make_result, {"B": 8, "H": 4}, {"B": 1, "H": 4}, {"B": 16, "H": 4})
    assert list(found.items()) == [("w1", "B=1"), ("w0", "B=8"), ("w2", "B=16")]


def test_axes_that_tell_nothing_more_are_left_out(make_result):
    found = labels(make_result, {"B": 1, "I": 2}, {"B": 8, "I": 9})
    assert set(found.values()) == {"B=1", "B=8"}


def test_as_many_axes_as_it_takes(make_result):
    found = labels(make_result, {"B": 1, "L": 5}, {"B": 1, "L": 6}, {"B": 2, "L": 5})
    assert list(found.values()) == ["B=1 L=5", "B=1 L=6", "B=2 L=5"]


def test_workloads_need_not_have_the_same_axes(make_result):
    found = labels(make_result, {"B": 2}, {}, {"B": 2, "L": 5})
    assert list(found.values()) == ["fixed size", "B=2", "B=2 L=5"]


def test_equal_workloads_are_numbered(make_result):
    assert list(labels(make_result, {"B": 1}, {"B": 1}).values()) == ["B=1", "B=1 #2"]


def test_a_workload_without_axes(make_result):
    assert list(labels(make_result, {}).values()) == ["fixed size"]

"""Axes, their labels, and short names."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.page.names import (
    clip,
    counted,
    short_solution,
    split_labels,
    workload_labels,
)
from flashinfer_bench.report.page.scale import (
    decimal_scale,
    doubling_scale,
    duration_label,
    ratio_label,
)

VALUES = st.lists(st.floats(1e-6, 1e6), max_size=30)


@pytest.mark.parametrize("make", [doubling_scale, decimal_scale])
@given(values=VALUES)
def test_every_value_has_a_place_on_the_axis(make, values):
    scale = make(values, 10.0, 110.0)
    for value in values:
        assert 10.0 - 1e-6 <= scale(value) <= 110.0 + 1e-6
        assert scale.low * (1 - 1e-9) <= value <= scale.high * (1 + 1e-9)


@pytest.mark.parametrize("make", [doubling_scale, decimal_scale])
@given(values=VALUES)
def test_larger_values_stand_further_along(make, values):
    scale = make(values, 0.0, 100.0)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)
    downwards = make(values, 100.0, 0.0)
    assert [downwards(value) for value in sorted(values)] == sorted(
        (100.0 - place for place in places), reverse=True
    ) or all(
        math.isclose(downwards(v), 100.0 - p, abs_tol=1e-6)
        for v, p in zip(sorted(values), places, strict=True)
    )


@pytest.mark.parametrize("make", [doubling_scale, decimal_scale])
@given(values=VALUES)
def test_there_are_a_few_lines_in_order_within_the_axis(make, values):
    scale = make(values, 0.0, 100.0)
    assert 2 <= len(scale.ticks) <= 10
    assert list(scale.ticks) == sorted(set(scale.ticks))
    assert scale.low <= scale.ticks[0]
    assert scale.ticks[-1] <= scale.high * (1 + 1e-9)


@given(VALUES)
def test_a_scale_of_ratios_always_shows_the_reference(values):
    scale = doubling_scale(values, 0.0, 100.0)
    assert 1.0 in scale.ticks
    assert scale.low <= 0.5
    assert scale.high >= 2.0


def test_close_quantities_are_drawn_from_zero():
    scale = decimal_scale([0.3, 0.9], 0.0, 100.0)
    assert not scale.logarithmic
    assert scale.ticks[0] == scale.low == 0.0
    assert scale(0.0) == 0.0


def test_distant_quantities_are_drawn_in_decades():
    scale = decimal_scale([0.08, 1.5], 0.0, 100.0)
    assert scale.logarithmic
    assert scale.ticks == pytest.approx((0.05, 0.1, 0.2, 0.5, 1.0, 2.0))


def test_values_beyond_the_axis_stay_at_its_ends():
    scale = doubling_scale([1.0], 0.0, 100.0)
    assert (scale(1e-9), scale(1e9)) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("value", "label"),
    [(1.0, "1×"), (0.5, "0.5×"), (2.345, "2.35×"), (1 / 64, "0.0156×"), (1 / 250, "1/250×"),
     (123.4, "123×"), (2048.0, "2,048×")],
)  # fmt: skip
def test_ratio_labels(value, label):
    assert ratio_label(value) == label


@pytest.mark.parametrize(
    ("milliseconds", "label"),
    [(0.0, "0"), (1e-5, "10 ns"), (0.0032, "3.2 µs"), (0.9999, "1 ms"), (41.0, "41 ms"),
     (999.9, "1 s"), (2000.0, "2 s"), (3.6e6, "3,600 s")],
)  # fmt: skip
def test_duration_labels(milliseconds, label):
    assert duration_label(milliseconds) == label


@given(st.text(max_size=100), st.integers(2, 50))
def test_clipped_text_fits_and_keeps_its_ends(text, width):
    clipped = clip(text, width)
    assert len(clipped) <= width
    if len(text) <= width:
        assert clipped == text
    else:
        assert clipped[0] == text[0]
        assert "…" in clipped


def test_counted():
    assert [counted(n, "row") for n in (0, 1, 2, 1234)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,234 rows",
    ]


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


@pytest.mark.parametrize(
    ("given_labels", "title", "short"),
    [
        ({"a": "B=1", "b": "B=22"}, "B", ["1", "22"]),
        ({"a": "B=1 L=5", "b": "B=2 L=6"}, "B · L", ["1 · 5", "2 · 6"]),
        ({"a": "fixed size"}, "", ["fixed size"]),
        ({"a": "B=1", "b": "B=1 #2"}, "", ["B=1", "B=1 #2"]),
    ],
)
def test_what_labels_share_becomes_the_title_of_the_axis(given_labels, title, short):
    assert split_labels(given_labels) == (title, dict(zip(given_labels, short, strict=True)))

"""Statistics, compared with the standard library and with their definitions."""

from __future__ import annotations

import math
import statistics as standard
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.statistics import (
    fast_p,
    geometric_mean,
    median,
    quantile,
    spread,
)

POSITIVE = st.floats(1e-6, 1e6)
SOME = st.lists(POSITIVE, min_size=1, max_size=40)


@given(SOME)
def test_geometric_mean(values):
    assert geometric_mean(values) == pytest.approx(standard.geometric_mean(values))


@given(POSITIVE)
def test_the_mean_of_one_value_is_exactly_that(value):
    assert geometric_mean([value]) == value


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf, 1.0]])
def test_no_geometric_mean(values):
    assert geometric_mean(values) is None


@given(SOME)
def test_median(values):
    assert median(values) == pytest.approx(standard.median(values))


def test_no_median():
    assert median([]) is None


@given(SOME, st.floats(0.0, 1.0))
def test_a_quantile_lies_between_the_extremes(values, share):
    ordered = sorted(values)
    slack = 1e-9 * ordered[-1]
    assert ordered[0] - slack <= quantile(ordered, share) <= ordered[-1] + slack


@given(SOME)
def test_quantiles_grow(values):
    ordered = sorted(values)
    found = [quantile(ordered, index / 10) for index in range(11)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))
    assert found[0] == ordered[0]
    assert found[-1] == ordered[-1]


def test_quantiles_interpolate():
    assert quantile([1.0, 2.0, 4.0], 0.25) == 1.5
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_no_quantile(values, share):
    with pytest.raises(ValueError, match="no quantile"):
        quantile(values, share)


@given(SOME)
def test_spread_is_in_order(values):
    found = spread(values)
    assert found is not None
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))
    assert found.median == pytest.approx(standard.median(values))


def test_no_spread():
    assert spread([]) is None


# --------------------------------------------------------------------------------- fast_p


@given(st.lists(st.floats(0.01, 100.0), max_size=30), st.integers(0, 10), st.floats(0.0, 200.0))
def test_fast_p_is_the_share_of_tasks_that_are_faster(speedups, unsolved, p):
    total = len(speedups) + unsolved
    corners = fast_p(speedups, total)
    if not total:
        assert corners == []
        return
    share = [share for corner, share in corners if corner <= p][-1]
    assert share == pytest.approx(sum(speedup > p for speedup in speedups) / total)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30), st.integers(0, 10))
def test_fast_p_falls_from_the_share_that_was_solved_to_nothing(speedups, unsolved):
    corners = fast_p(speedups, len(speedups) + unsolved)
    places, shares = zip(*corners, strict=True)
    assert places[0] == 0.0
    assert shares[0] == pytest.approx(len(speedups) / (len(speedups) + unsolved))
    assert shares[-1] == 0.0
    assert list(places) == sorted(set(places))
    assert list(shares) == sorted(set(shares), reverse=True)


def test_fast_p_of_nothing_solved():
    assert fast_p([], 4) == [(0.0, 0.0)]

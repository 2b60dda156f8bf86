"""Intervals of ratios and means, and the ranks that follow from them."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.scores import (
    Measured,
    latency_of,
    mean_of,
    rank_labels,
    ranks,
    ratio_of,
    speedup_of,
)
from flashinfer_bench.stats.intervals import median_interval, ratio_interval


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

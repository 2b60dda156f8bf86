"""Distributions in a few bytes: how exact they are, and how much room they take."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.report.page.shapes import (
    POINTS,
    TOP,
    Shape,
    ShapeBook,
    points_of,
    shape_of,
)
from flashinfer_bench.report.statistics import quantile

LATENCIES = st.floats(0.0, 1e6) | st.floats(1e-6, 1e-3)
POSITIVE = st.floats(1e-6, 1e6)


def wanted(samples):
    ordered = sorted(samples)
    if len(ordered) <= POINTS:
        return ordered
    return [quantile(ordered, number / (POINTS - 1)) for number in range(POINTS)]


@given(st.lists(POSITIVE, min_size=1, max_size=100))
def test_a_point_is_off_by_half_a_level_at_most(samples):
    shape = shape_of(samples)
    half = math.log(shape.high / shape.low) / TOP / 2
    for point, expected in zip(points_of(shape), wanted(samples), strict=True):
        assert abs(math.log(point / expected)) <= half + 1e-9


@given(st.lists(LATENCIES, min_size=1, max_size=100))
@example([0.0, 0.0])
@example([0.0, 5.0])
@example([1e-320, 1.0])
def test_the_least_and_the_greatest_are_kept(samples):
    shape = shape_of(samples)
    points = points_of(shape)
    assert (shape.low, shape.high) == (min(samples), max(samples))
    assert points[0] == pytest.approx(min(samples))
    assert points[-1] == pytest.approx(max(samples))
    assert points == sorted(points)
    assert len(points) == min(len(samples), POINTS)


@given(st.lists(LATENCIES, min_size=1, max_size=100))
def test_steps_are_one_character_each_and_no_surrogate(samples):
    steps = shape_of(samples).steps
    assert sum(ord(step) - 48 for step in steps) <= TOP
    assert all(48 <= ord(step) <= 48 + TOP for step in steps)
    steps.encode("utf-8")


@given(st.lists(LATENCIES, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples, rng):
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert shape_of(shuffled) == shape_of(samples)


def test_there_is_no_shape_of_nothing():
    assert shape_of([]) is None
    assert ShapeBook().add([]) == -1


def test_an_outlier_stays_in_sight():
    points = points_of(shape_of([1.0] * 599 + [50.0]))
    assert points[-1] == pytest.approx(50.0)
    assert points[-2] == pytest.approx(1.0)


def test_one_sample_is_one_point():
    assert shape_of([2.5]) == Shape(2.5, 2.5, "0")
    assert points_of(Shape(2.5, 2.5, "0")) == [2.5]


def test_a_book_gives_each_its_place_until_it_is_full():
    rng = random.Random(7)
    book = ShapeBook(most_bytes=20_000)
    places = [book.add([rng.lognormvariate(0, 1) for _ in range(90)]) for _ in range(3_000)]
    kept = len(book.shapes)
    assert places == [*range(kept), *[-1] * (3_000 - kept)]
    assert 200 < kept < 1_500


def test_a_shape_costs_less_than_forty_bytes():
    rng = random.Random(3)
    book = ShapeBook()
    for _ in range(5_000):
        middle = rng.lognormvariate(0, 2)
        book.add([middle * rng.lognormvariate(0, 0.1) for _ in range(64)])
    assert len(book.shapes) == 5_000
    assert book._used / 5_000 < 40

"""A quick version of ``benchmarks/interval_coverage.py``, and tests of its made-up timers."""

import math

import pytest

NAMES = (
    "lognormal",
    "bimodal",
    "drifting",
    "warming",
    "heavy-tailed",
    "cauchy",
    "quantised",
    "two stamps",
    "throttling",
    "AR(1) 0.3",
)
RUNS = 250
# Three standard errors of a share of 95 % over so many runs.
SLACK = 3 * math.sqrt(0.95 * 0.05 / RUNS)


@pytest.mark.parametrize(
    ("name", "count"), [*((name, 150) for name in NAMES), *((name, 30) for name in NAMES[1::3])]
)
def test_held_as_often_as_promised(coverage_benchmark, name, count):
    row = coverage_benchmark.measure((name, count, RUNS, 11))
    low, high = coverage_benchmark.PROMISED
    assert row["promised"]
    assert low - SLACK <= row["coverage"] <= high + SLACK


@pytest.mark.parametrize("name", ["coarse", "coarse stamps"])
def test_ticks_that_say_no_more_are_not_trusted(coverage_benchmark, name):
    """Most samples on one tick: the interval is the tick, and holds the truth more often."""
    row = coverage_benchmark.measure((name, 150, 100, 11))
    assert row["coverage"] >= coverage_benchmark.PROMISED[0]
    assert row["half_width_percent"] > 1.5

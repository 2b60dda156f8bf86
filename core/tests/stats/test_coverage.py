"""A quick version of ``benchmarks/interval_coverage.py``, and tests of its made-up timers."""

from __future__ import annotations

import math
import random
import sys
from statistics import median

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


@pytest.mark.parametrize("count", [30, 150])
@pytest.mark.parametrize("name", NAMES)
def test_held_as_often_as_promised(coverage_benchmark, name, count) -> None:
    row = coverage_benchmark.measure((name, count, RUNS, 11))
    low, high = coverage_benchmark.PROMISED
    assert row["promised"]
    assert low - SLACK <= row["coverage"] <= high + SLACK


@pytest.mark.parametrize("name", ["coarse", "coarse stamps"])
def test_ticks_that_say_no_more_are_not_trusted(coverage_benchmark, name) -> None:
    """Most samples on one tick: the interval is the tick, and holds the truth more often."""
    row = coverage_benchmark.measure((name, 150, 100, 11))
    assert row["coverage"] >= coverage_benchmark.PROMISED[0]
    assert row["half_width_percent"] > 1.5


def test_every_promised_timer_is_tested(coverage_benchmark) -> None:
    timers = coverage_benchmark.load_synthetic().TIMERS
    assert {timer.name for timer in timers if timer.promised} == set(NAMES)


def test_made_up_medians_are_true(coverage_benchmark) -> None:
    """The median of one very long run is the one that is said to be true."""
    for timer in coverage_benchmark.load_synthetic().TIMERS:
        if timer.resolution:
            continue  # known without rounding only
        samples, true = timer.take(random.Random(12), 40_000)
        assert median(samples) == pytest.approx(true, rel=0.01), timer.name


def test_ticks_are_ticks(coverage_benchmark) -> None:
    for timer in coverage_benchmark.load_synthetic().TIMERS:
        if timer.resolution:
            samples, true = timer.take(random.Random(13), 4_000)
            assert all((2 * value).is_integer() for value in samples)
            assert sum(samples) / len(samples) == pytest.approx(true, abs=0.3)


def test_command(coverage_benchmark, capsys, monkeypatch) -> None:
    command = ["interval_coverage", "--runs", "20", "--timer", "long bursts", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", command)
    assert coverage_benchmark.main() == 0
    printed = capsys.readouterr().out
    assert "long bursts" in printed
    assert "n = 600" in printed

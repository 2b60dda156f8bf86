"""A quick version of ``benchmarks/interval_coverage.py``, which takes runs of made-up timers."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "interval_coverage.py"
if not PATH.is_file():
    pytest.skip(f"{PATH} is not there: this is no checkout", allow_module_level=True)
spec = importlib.util.spec_from_file_location("fib_interval_coverage", PATH)
benchmark = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

NAMES = [timer.name for timer in benchmark.load_synthetic().TIMERS if timer.promised]
RUNS = 250
# Three standard errors of a share of 95 % over so many runs.
SLACK = 3 * math.sqrt(0.95 * 0.05 / RUNS)


@pytest.mark.parametrize(
    ("name", "count"), [*((name, 150) for name in NAMES), *((name, 30) for name in NAMES[1::3])]
)
def test_held_as_often_as_promised(name, count):
    low, high = benchmark.PROMISED
    assert low - SLACK <= benchmark.measure((name, count, RUNS, 11))["coverage"] <= high + SLACK


@pytest.mark.parametrize("name", ["coarse", "coarse stamps"])
def test_ticks_that_say_no_more_are_not_trusted(name):
    """Most samples on one tick: the interval is the tick, and holds the truth more often."""
    row = benchmark.measure((name, 150, 100, 11))
    assert row["coverage"] >= benchmark.PROMISED[0]
    assert row["half_width_percent"] > 1.5

"""The figures that ``benchmarks/compare_power.py`` prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "compare_power.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks are not part of an sdist")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compare_power", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    # From the beta quantiles in C. J. Clopper and E. S. Pearson's form.
    [(0, 100, 0.0, 0.03622), (5, 100, 0.01643, 0.11283), (90, 100, 0.82378, 0.95099)],
)
def test_exact_intervals(script, count, total, low, high):
    assert script.clopper_pearson(count, total) == pytest.approx((low, high), abs=1e-5)


def record(candidate, verdict, ratio=1.0, pairs=150):
    launch = {"baseline": [5.0] * pairs, "candidate": [5.0 * ratio] * pairs}
    return {
        "candidate": candidate,
        "verdict": verdict,
        "seconds": 3.0,
        "load": 0.1,
        "launches": [launch],
    }


def test_the_usual_rule_says_bigger_whatever_the_size(script):
    assert script.usual_rule(record("same", "same", 1.0001)) == "slower"
    assert script.usual_rule(record("same", "same", 0.9999)) == "faster"
    assert script.usual_rule(record("same", "same", 1.0001), 0.01) == "same"
    assert script.usual_rule(record("same", "same", pairs=2)) == "none"


def test_false_alarms_and_detections_are_counted(script):
    records = [record("same", "same"), record("same", "faster"), record("five", "slower", 1.05)]
    rows = {row["slower_by_percent"]: row for row in script.summary(records)}
    assert rows[0.0]["compare"]["count"] == 1
    assert rows[5.0]["compare"] == {"count": 1, "of": 1, "percent": 100.0, "interval": [2.5, 100.0]}
    assert rows[5.0]["usual_rule"]["count"] == 1
    assert 10.0 not in rows

"""Comparing recorded samples: which runs meet, and what makes them incomparable."""

import random

import pytest

from fib_compare.paired.comparer import CompareSettings
from fib_compare.paired.result import compare_recorded
from fib_tests.records import Make
from flashinfer_bench.errors import ConflictError


def trace(ms=5.0, solution="s", uuid="w1", *, hardware="H", count=150, **changes):
    rng = random.Random(7)
    samples = [ms * rng.lognormvariate(0, 0.01) for _ in range(count)]
    status = changes.pop("status", "PASSED")
    time = changes.pop("time", "2026-01-01T00:00:00")
    told = {"timer": "cpu", "timer_version": "1", "definition_hash": "0" * 16, **changes}
    facts = {"environment": {"hardware": hardware}, "timestamp": time, "provenance": told}
    if status == "PASSED":
        figures = {"latency_ms": ms, "reference_latency_ms": 0.0, "speedup_factor": 0.0}
        facts["performance"] = {**figures, "samples_ms": samples or None}
    return Make.trace(solution, "double", uuid, status=status, **facts)


def compare(before, after, names=None, *, force=False):
    return compare_recorded(before, after, CompareSettings(), names, force=force)


def test_each_solution_meets_itself_on_each_workload():
    both = [trace(solution=s, uuid=w) for s in ("a", "b") for w in ("w1", "w2")]
    found = compare(both, [*both, trace(solution="c")])
    assert [(one.candidate, one.workload) for one in found] == [
        ("a", "w1"),
        ("a", "w2"),
        ("b", "w1"),
        ("b", "w2"),
    ]


def test_the_latest_run_counts():
    old = trace(9.0, time="2026-01-01T00:00:00")
    new = trace(5.0, time="2026-02-01T00:00:00")
    (found,) = compare([old, new], [trace(5.0)])
    assert found.baseline_ms == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hardware": "other"}, "hardware"),
        ({"timer": "cuda_event"}, "timer"),
        ({"timer_version": "2"}, "timer version"),
        ({"definition_hash": "f" * 16}, "definition"),
    ],
)
def test_what_cannot_be_compared_is_refused_unless_forced(changes, text):
    pair = [trace()], [trace(**changes)]
    with pytest.raises(ConflictError, match=text) as caught:
        compare(*pair)
    assert "--force" in caught.value.hint
    (found,) = compare(*pair, force=True)
    assert found.comparison is not None
    assert any(
        note.startswith(f"compared by --force despite different {text}") for note in found.notes
    )


def test_without_samples_there_is_no_comparison():
    (found,) = compare([trace(count=0)], [trace()])
    assert (found.obstacle.role, found.obstacle.kind) == ("baseline", "not recorded")
    (found,) = compare([trace()], [trace(count=3)])
    assert found.obstacle.message.startswith("only 3 of the required 5")

"""What there is in a dataset."""

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import summarize

ALL = Selection()


@pytest.fixture
def two(two_definitions):
    """Two definitions; the second has no solution by ``baseline``, and a definition is gone."""
    maker = two_definitions
    maker.trace("bob_triple", definition="triple", status="TIMEOUT", hardware="NVIDIA H200")
    maker.trace("lost", definition="lost", hardware="NVIDIA H200")
    return TraceSet.from_path(maker.root)


def test_counts(two):
    found = summarize(two, ALL)
    counts = {one.definition: one for one in found.definitions}
    assert list(counts) == ["double", "lost", "triple"]
    double = counts["double"]
    assert (double.solutions, double.workloads, double.traces) == (2, 2, 4)
    assert (double.passed, double.failed) == (4, 0)
    assert (counts["triple"].passed, counts["triple"].failed) == (0, 1)
    assert (counts["lost"].op_type, counts["lost"].solutions) == ("", 0)
    assert found.totals() == {
        "definitions": 3,
        "solutions": 3,
        "workloads": 3,
        "traces": 6,
        "passed": 5,
        "failed": 1,
    }
    assert found.statuses == {"PASSED": 5, "TIMEOUT": 1}


def test_devices_are_ranked_apart(maker):
    maker.sound()
    for uuid in ("w1", "w2"):
        maker.trace("baseline_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
        maker.trace("alice_double", uuid=uuid, latency_ms=1.0, hardware="Fast CPU")
    found = summarize(TraceSet.from_path(maker.root), ALL)
    assert [(r.hardware, r.speedup) for r in found.rankings] == [
        ("Fast CPU", 1.0),
        ("Test CPU", 4.0),
    ]


@pytest.fixture
def mixed(maker):
    """Two solutions by one timer; one of them also by another, which is three times as fast."""
    maker.sound()
    times = {"cuda_event": 0.9, "cupti": 0.3}
    for timer, latency in times.items():
        maker.trace(
            "alice_double", latency_ms=latency, provenance={
                "timer": timer,
                "stop_rule": "rse",
                "timing": {"cache": "cold", "reference": "before"},
            },
        )  # fmt: skip
    return TraceSet.from_path(maker.root)


def test_authors_are_ranked_apart(mixed):
    summary = summarize(mixed, Selection())
    timings = {(one.timer, one.reference): one.runs for one in summary.timings}
    assert timings == {("", ""): 4, ("cuda_event", "before"): 1, ("cupti", "before"): 1}
    assert {(one.timer, one.author) for one in summary.rankings} == {("", "alice")}

"""Counts and rankings of a dataset."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.report import Selection, summarize

ALL = Selection()


@pytest.fixture
def two(maker):
    """Two definitions; the second has no solution by ``baseline``, and a definition is gone."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", uuid="w1", op_type="gemm")
    maker.trace("bob_triple", definition="triple", status="TIMEOUT", hardware="NVIDIA H200")
    maker.trace("lost", definition="lost", hardware="NVIDIA H200")
    return TraceSet.from_path(maker.root)


def test_counts(two):
    found = summarize(two, ALL)
    counts = {one.definition: one for one in found.definitions}
    assert list(counts) == ["double", "lost", "triple"]
    double = counts["double"]
    assert (double.solutions, double.workloads, double.traces) == (2, 2, 4)
    assert (double.passed, double.failed, double.solved) == (4, 0, True)
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


def test_ranking(two):
    found = summarize(two, ALL)
    (rank,) = found.rankings
    assert (rank.hardware, rank.author, rank.speedup) == ("Test CPU", "alice", 4.0)
    assert (rank.definitions, rank.workloads) == (1, 2)


def test_a_missing_baseline_is_a_reason_not_an_error(two):
    found = summarize(two, ALL)
    assert "triple" in found.unranked
    assert "baseline" in found.unranked["triple"]


def test_another_baseline(two):
    found = summarize(two, ALL, baseline_author="alice")
    (rank,) = found.rankings
    assert (rank.author, rank.speedup) == ("baseline", 0.25)


def test_nobody_is_the_baseline(two):
    found = summarize(two, ALL, baseline_author="nobody")
    assert found.rankings == ()
    assert set(found.unranked) >= {"double", "triple"}


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


@pytest.mark.parametrize(
    ("selection", "names", "traces"),
    [
        (Selection(definitions=("double",)), ["double"], 4),
        (Selection(op_types=("gemm",)), ["triple"], 1),
        (Selection(hardware=("h200",)), ["double", "lost", "triple"], 2),
    ],
)
def test_selection(two, selection, names, traces):
    found = summarize(two, selection)
    assert [one.definition for one in found.definitions] == names
    assert found.traces == traces


def test_unknown_names_are_refused(two):
    with pytest.raises(UnknownNameError):
        summarize(two, Selection(definitions=("quadruple",)))


def test_a_dataset_without_traces(maker):
    maker.definition()
    found = summarize(TraceSet.from_path(maker.root), ALL)
    assert (found.traces, found.passed, found.statuses) == (0, 0, {})
    assert not found.definitions[0].solved

"""Every measure at once, by device."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.report import Selection
from flashinfer_bench.report.scoreboard import make_scoreboard

ALL = Selection()


@pytest.fixture
def trace_set(maker):
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", op_type="gemm")
    maker.trace("bob_triple", definition="triple", hardware="H200")
    return TraceSet.from_path(maker.root)


def test_authors_are_compared_with_the_baseline_on_each_device(trace_set):
    found = make_scoreboard(trace_set, ALL)
    assert found.baseline_author == "baseline"
    rows = [(s.hardware, s.rating.name, s.score, s.rating.speedup) for s in found.standings]
    assert rows == [
        ("Test CPU", "alice", 4.0, pytest.approx(4.0)),
        ("Test CPU", "baseline", None, 1.0),
    ]


def test_without_a_baseline_the_reference_is_compared_with(trace_set):
    for author in (None, "nobody"):
        found = make_scoreboard(trace_set, ALL, author)
        assert found.baseline_author is None
        assert [(s.hardware, s.rating.name) for s in found.standings] == [
            ("H200", "bob"),
            ("Test CPU", "alice"),
            ("Test CPU", "baseline"),
        ]
        assert {s.score for s in found.standings} == {None}


def test_the_score_is_that_of_the_dataset(trace_set):
    found = make_scoreboard(trace_set, ALL, solutions=True)
    scores = {s.rating.name: s.score for s in found.standings}
    assert scores == {"alice_double": 4.0, "baseline_double": None}
    assert scores["alice_double"] == trace_set.get_solution_score("alice_double").avg_speedup


def test_one_failure_makes_the_score_zero_and_not_the_means(maker):
    maker.sound()
    maker.workload(uuid="w3", axes={"N": 64})
    maker.trace("alice_double", uuid="w3", status="TIMEOUT", axes={"N": 64})
    maker.trace("baseline_double", uuid="w3", axes={"N": 64})
    found = make_scoreboard(TraceSet.from_path(maker.root), ALL)
    alice = next(s for s in found.standings if s.rating.name == "alice")
    assert (alice.score, alice.rating.speedup) == (0.0, pytest.approx(4.0))
    assert alice.rating.fast[1.0] == pytest.approx(2 / 3)


def test_selection_and_nothing_to_rate(trace_set):
    found = make_scoreboard(trace_set, Selection(op_types=("gemm",)))
    assert [s.rating.name for s in found.standings] == ["bob"]
    assert make_scoreboard(trace_set, Selection(hardware=("none",))).standings == ()

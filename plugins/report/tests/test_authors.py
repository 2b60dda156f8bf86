"""Scores of solutions and authors, rankings and summaries, as `TraceSet` gives them."""

import math

import pytest

from flashinfer_bench.data import SpeedupMetrics

NAME = "gemm_n8_k4"
BOTH = ("baseline", "a", 4.0), ("alice", "a", 2.0), ("baseline", "b", 9.0), ("alice", "b", 1.5)


# ---------------------------------------------------------------------------- score of a solution


def invalid(trace, latency):
    """Return the trace with a latency that no file could hold."""
    performance = trace.evaluation.performance.model_copy(update={"latency_ms": latency})
    evaluation = trace.evaluation.model_copy(update={"performance": performance})
    return trace.model_copy(update={"evaluation": evaluation})


def test_the_score_is_the_mean_speedup_over_the_baseline(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"),
        make.run("baseline", 9.0, uuid="w2"),
        make.run("alice", 2.0, uuid="w1"),
        make.run("alice", 3.0, uuid="w2"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert score == SpeedupMetrics(
        avg_speedup=2.5,
        definitions=1,
        workloads=2,
        success_rate=1.0,
        win_rate=1.0,
        best_solutions={NAME: "alice_v1"},
    )


def test_only_workloads_that_the_baseline_passed_take_part(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"),
        make.run("baseline", uuid="w2", status="TIMEOUT"),
        make.run("alice", 2.0, uuid="w1"),
        make.run("alice", 0.1, uuid="w2"),
        make.run("alice", 0.1, uuid="w3"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert (score.avg_speedup, score.workloads) == (2.0, 1)


def test_what_has_no_score(make):
    trace_set = make.trace_set(
        make.run("baseline", 4.0, uuid="w1"), make.run("alice", 2.0, uuid="w2")
    )
    for name in ("baseline_v1", "unknown", "alice_v1"):  # which has no workload in common
        assert trace_set.get_solution_score(name) is None
    assert make.trace_set().get_solution_score("alice_v1") is None


def test_the_baseline_may_be_another_author(make):
    trace_set = make.trace_set(make.run("baseline", 4.0), make.run("alice", 2.0))
    score = trace_set.get_solution_score("baseline_v1", baseline_author="alice")
    assert score.avg_speedup == 0.5
    assert trace_set.get_solution_score("alice_v1", baseline_author="alice") is None


@pytest.mark.parametrize(
    ("authors", "more", "words"),
    [
        (("alice",), [], "no solution by the baseline author 'baseline'"),
        (("baseline", "alice"), ["second"], r"2 solutions \(baseline_v1, second\)"),
    ],
)
def test_exactly_one_baseline_is_needed(make, authors, more, words):
    trace_set = make.trace_set(authors=authors)
    trace_set.solutions[NAME] += [make.solution(name, author="baseline") for name in more]
    with pytest.raises(ValueError, match=words) as caught:
        trace_set.get_solution_score("alice_v1")
    assert NAME in str(caught.value)


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, math.inf])
def test_a_pass_without_a_real_latency_is_an_error(make, latency):
    trace_set = make.trace_set(make.run("baseline", 4.0), invalid(make.run("alice"), latency))
    with pytest.raises(ValueError, match=f"solution 'alice_v1' has a latency of {latency} ms"):
        trace_set.get_solution_score("alice_v1")


# ------------------------------------------------------------------------------ score of an author


def test_the_score_of_an_author_is_the_mean_over_definitions(make):
    trace_set = make.two_definitions(*BOTH)
    score = trace_set.get_author_score("alice")
    assert (score.avg_speedup, score.workloads, score.definitions) == (4.0, 2, 2)
    assert (score.success_rate, score.win_rate) == (1.0, 1.0)
    assert set(score.best_solutions) == set(trace_set.definitions)


def test_the_best_solution_of_each_definition_counts(make):
    trace_set = make.trace_set(make.run("baseline", 4.0), make.run("alice", 2.0))
    trace_set.solutions[NAME].append(make.solution("alice_v2", author="alice"))
    trace_set.traces[NAME].append(make.trace("alice_v2", latency_ms=1.0))
    assert trace_set.get_author_score("alice").avg_speedup == 4.0


def test_scopes(make):
    trace_set = make.two_definitions(*BOTH)
    assert trace_set.get_author_score("alice", definition_name="a").avg_speedup == 2.0
    assert trace_set.get_author_score("alice", op_type="type_b").avg_speedup == 6.0
    assert trace_set.get_author_score("alice", op_type="none") is None
    with pytest.raises(ValueError, match="not both"):
        trace_set.get_author_score("alice", op_type="type_a", definition_name="a")
    with pytest.raises(KeyError, match="no definition 'c'"):
        trace_set.get_author_score("alice", definition_name="c")


def test_a_missing_baseline_elsewhere_does_not_matter_to_an_author(make):
    trace_set = make.two_definitions(("baseline", "a", 4.0), ("alice", "a", 2.0))
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    assert trace_set.get_author_score("alice").avg_speedup == 2.0
    with pytest.raises(ValueError, match="'b' has no solution by the baseline author"):
        trace_set.get_author_score("bob")


# ------------------------------------------------------------------------------------------ ranking


def test_authors_are_ranked(make):
    trace_set = make.two_definitions(
        ("baseline", "a", 4.0),
        ("alice", "a", 2.0),
        ("bob", "a", 1.0),
        ("baseline", "b", 9.0),
        ("bob", "b", 9.0),
    )
    ranking = trace_set.rank_authors()
    assert [(author, one.avg_speedup) for author, one in ranking] == [("bob", 2.5), ("alice", 2.0)]
    ((author, score),) = trace_set.rank_authors(op_type="type_b")
    assert (author, score.avg_speedup, score.workloads, score.win_rate) == ("bob", 1.0, 1, 0.0)


def test_equals_are_ranked_by_name(make):
    trace_set = make.trace_set(
        *(make.run(author, 2.0) for author in ("zoe", "baseline", "alice", "bob")),
        authors=("zoe", "baseline", "alice", "bob"),
    )
    assert [author for author, _ in trace_set.rank_authors()] == ["alice", "bob", "zoe"]


def test_ranking_needs_a_baseline_everywhere(make):
    trace_set = make.two_definitions()
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    with pytest.raises(ValueError, match="definition 'b' has no solution by the baseline author"):
        trace_set.rank_authors()
    assert trace_set.rank_authors(definition_name="a") == []


# ------------------------------------------------------------------------------------------ summary


def test_summary_says_what_cannot_be_ranked(make):
    trace_set = make.two_definitions(("baseline", "a", 4.0), ("alice", "a", 2.0), ("bob", "b", 1.0))
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    summary = trace_set.summary()
    assert summary.total == 3
    assert [author for author, _ in summary.rankings] == ["alice"]
    assert list(summary.unranked) == ["b"]
    assert "no solution by the baseline author 'baseline'" in summary.unranked["b"]
    assert trace_set.summary(baseline_author="nobody").rankings == []
    assert list(trace_set.summary(baseline_author="nobody").unranked) == ["a", "b"]

"""Scores of authors, rankings and summaries."""

import pytest

NAME = "gemm_n8_k4"


# ------------------------------------------------------------------------------ score of an author


def test_the_score_of_an_author_is_the_mean_over_definitions(make):
    trace_set = make.two_definitions(
        ("baseline", "a", 4.0), ("alice", "a", 2.0), ("baseline", "b", 9.0), ("alice", "b", 1.5)
    )
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
    trace_set = make.two_definitions(
        ("baseline", "a", 4.0), ("alice", "a", 2.0), ("baseline", "b", 9.0), ("alice", "b", 1.5)
    )
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
    assert [(author, score.avg_speedup) for author, score in ranking] == [
        ("bob", 2.5),
        ("alice", 2.0),
    ]
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

"""Scores of solutions and authors, rankings, summaries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.data import SpeedupMetrics, TraceSet
from flashinfer_bench.data.ranking import (
    Runs,
    combine,
    digest_runs,
    find_baseline,
    rank_scores,
    score_runs,
    select_definitions,
)
from flashinfer_bench.errors import ConfigError, DataError, SelectionError

NAME = "gemm_n8_k4"


def run(make, author, ms=None, *, uuid="w1", status="PASSED", definition=NAME):
    return make.trace(
        f"{author}_v1",
        definition,
        uuid=uuid,
        status=status,
        latency_ms=ms if ms is not None else 1.0,
    )


def invalid(trace, latency):
    """Return the trace with a latency that no file could hold."""
    performance = trace.evaluation.performance.model_copy(update={"latency_ms": latency})
    evaluation = trace.evaluation.model_copy(update={"performance": performance})
    return trace.model_copy(update={"evaluation": evaluation})


def two_definitions(make, *traces, authors=("baseline", "alice", "bob")):
    """Definitions ``a`` and ``b`` of types ``type_a`` and ``type_b``; a solution an author."""
    names = ("a", "b")
    trace_set = TraceSet(
        definitions={name: make.definition(name, op_type=f"type_{name}") for name in names},
        solutions={
            name: [make.solution(f"{author}_{name}", name, author) for author in authors]
            for name in names
        },
    )
    for author, name, ms in traces:
        trace = make.trace(f"{author}_{name}", name, latency_ms=ms)
        trace_set.traces.setdefault(name, []).append(trace)
    return trace_set


# ------------------------------------------------------------------------------ score of a solution


def test_the_score_is_the_mean_speedup_over_the_baseline(make):
    trace_set = make.trace_set(
        run(make, "baseline", 4.0, uuid="w1"),
        run(make, "baseline", 9.0, uuid="w2"),
        run(make, "alice", 2.0, uuid="w1"),
        run(make, "alice", 3.0, uuid="w2"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert score == SpeedupMetrics(avg_speedup=2.5, n_workloads=2, n_definitions=1)


def test_the_speedup_over_the_reference_does_not_enter(make):
    fast = make.trace("alice_v1", latency_ms=2.0, speedup=100.0)
    trace_set = make.trace_set(run(make, "baseline", 4.0), fast)
    assert trace_set.get_solution_score("alice_v1").avg_speedup == 2.0


def test_of_several_traces_the_fastest_counts_on_both_sides(make):
    trace_set = make.trace_set(
        run(make, "baseline", 8.0),
        run(make, "baseline", 6.0),
        run(make, "alice", 3.0),
        run(make, "alice", 2.0),
        run(make, "alice", 4.0),
    )
    assert trace_set.get_solution_score("alice_v1").avg_speedup == 3.0


def test_only_workloads_that_the_baseline_passed_take_part(make):
    trace_set = make.trace_set(
        run(make, "baseline", 4.0, uuid="w1"),
        run(make, "baseline", uuid="w2", status="TIMEOUT"),
        run(make, "alice", 2.0, uuid="w1"),
        run(make, "alice", 0.1, uuid="w2"),
        run(make, "alice", 0.1, uuid="w3"),
    )
    score = trace_set.get_solution_score("alice_v1")
    assert (score.avg_speedup, score.n_workloads) == (2.0, 1)


@pytest.mark.parametrize(
    "status", ["TIMEOUT", "COMPILE_ERROR", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE"]
)
def test_one_failure_makes_the_score_zero(make, status):
    trace_set = make.trace_set(
        run(make, "baseline", 4.0),
        run(make, "alice", 2.0),
        run(make, "alice", uuid="w2", status=status),
    )
    assert trace_set.get_solution_score("alice_v1").avg_speedup == 0.0


def test_a_failure_makes_the_score_zero_even_if_it_passed_later(make):
    trace_set = make.trace_set(
        run(make, "baseline", 4.0), run(make, "alice", status="TIMEOUT"), run(make, "alice", 2.0)
    )
    assert trace_set.get_solution_score("alice_v1").avg_speedup == 0.0


def test_the_baseline_is_not_scored(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0))
    assert trace_set.get_solution_score("baseline_v1") is None


def test_unknown_solutions_have_no_score(make):
    assert make.trace_set().get_solution_score("none") is None


def test_without_comparable_workloads_there_is_no_score(make):
    assert make.trace_set().get_solution_score("alice_v1") is None
    trace_set = make.trace_set(
        run(make, "baseline", 4.0, uuid="w1"), run(make, "alice", 2.0, uuid="w2")
    )
    assert trace_set.get_solution_score("alice_v1") is None


def test_the_baseline_may_be_another_author(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0), run(make, "alice", 2.0))
    score = trace_set.get_solution_score("baseline_v1", baseline_author="alice")
    assert score.avg_speedup == 0.5
    assert trace_set.get_solution_score("alice_v1", baseline_author="alice") is None


def test_a_missing_baseline_is_an_error(make):
    trace_set = make.trace_set(authors=("alice",))
    with pytest.raises(ValueError, match="no solution by the baseline author 'baseline'") as caught:
        trace_set.get_solution_score("alice_v1")
    assert NAME in str(caught.value)


def test_two_baselines_are_an_error(make):
    trace_set = make.trace_set()
    trace_set.solutions[NAME].append(make.solution("second", author="baseline"))
    with pytest.raises(ValueError, match=r"2 solutions \(baseline_v1, second\)"):
        trace_set.get_solution_score("alice_v1")


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, math.inf])
def test_a_pass_without_a_real_latency_is_an_error(make, latency):
    trace_set = make.trace_set(run(make, "baseline", 4.0), invalid(run(make, "alice"), latency))
    with pytest.raises(ValueError, match=f"solution 'alice_v1' has a latency of {latency} ms"):
        trace_set.get_solution_score("alice_v1")


def test_a_pass_without_performance_is_an_error(make):
    trace = run(make, "alice")
    trace.evaluation.performance = None
    with pytest.raises(DataError, match="has a latency of nan"):
        digest_runs([trace])


def test_workload_traces_do_not_count(make):
    assert digest_runs([make.trace(None)]) == Runs({}, set())


# ------------------------------------------------------------------------------ score of an author


def test_the_score_of_an_author_is_the_mean_over_definitions(make):
    trace_set = two_definitions(
        make,
        ("baseline", "a", 4.0),
        ("alice", "a", 2.0),
        ("baseline", "b", 9.0),
        ("alice", "b", 1.5),
    )
    score = trace_set.get_author_score("alice")
    assert score == SpeedupMetrics(avg_speedup=4.0, n_workloads=2, n_definitions=2)


def test_the_best_solution_of_each_definition_counts(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0), run(make, "alice", 2.0))
    trace_set.solutions[NAME].append(make.solution("alice_v2", author="alice"))
    trace_set.traces[NAME].append(make.trace("alice_v2", latency_ms=1.0))
    assert trace_set.get_author_score("alice").avg_speedup == 4.0


def test_a_failed_solution_does_not_hurt_a_good_one(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0), run(make, "alice", 2.0))
    trace_set.solutions[NAME].append(make.solution("alice_v0", author="alice"))
    trace_set.traces[NAME].append(make.trace("alice_v0", status="TIMEOUT"))
    assert trace_set.get_author_score("alice").avg_speedup == 2.0


def test_failures_alone_are_zero(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0), run(make, "alice", status="TIMEOUT"))
    assert trace_set.get_author_score("alice").avg_speedup == 0.0


def test_definitions_without_a_score_are_left_out_of_the_mean(make):
    trace_set = two_definitions(make, ("baseline", "a", 4.0), ("alice", "a", 2.0))
    assert trace_set.get_author_score("alice").n_definitions == 1


def test_authors_without_a_score(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0))
    assert trace_set.get_author_score("alice") is None
    assert trace_set.get_author_score("nobody") is None
    assert trace_set.get_author_score("baseline") is None


def test_scopes(make):
    trace_set = two_definitions(
        make,
        ("baseline", "a", 4.0),
        ("alice", "a", 2.0),
        ("baseline", "b", 9.0),
        ("alice", "b", 1.5),
    )
    assert trace_set.get_author_score("alice", definition_name="a").avg_speedup == 2.0
    assert trace_set.get_author_score("alice", op_type="type_b").avg_speedup == 6.0
    assert trace_set.get_author_score("alice", op_type="none") is None
    with pytest.raises(ValueError, match="not both"):
        trace_set.get_author_score("alice", op_type="type_a", definition_name="a")
    with pytest.raises(KeyError, match="no definition 'c'"):
        trace_set.get_author_score("alice", definition_name="c")


def test_a_missing_baseline_elsewhere_does_not_matter_to_an_author(make):
    trace_set = two_definitions(make, ("baseline", "a", 4.0), ("alice", "a", 2.0))
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    assert trace_set.get_author_score("alice").avg_speedup == 2.0
    with pytest.raises(ValueError, match="'b' has no solution by the baseline author"):
        trace_set.get_author_score("bob")


def test_unknown_names_are_both_of_our_errors_and_pythons(make):
    with pytest.raises(SelectionError) as caught:
        select_definitions(make.trace_set(), definition_name="c")
    assert isinstance(caught.value, KeyError)
    assert caught.value.unknown == ("c",)
    assert str(caught.value) == "there is no definition 'c' in the dataset"
    with pytest.raises(ConfigError):
        select_definitions(make.trace_set(), "gemm", NAME)


def test_all_definitions_include_those_only_traces_know(make):
    known = {NAME: make.definition()}
    trace_set = TraceSet(definitions=known, solutions={"x": []}, traces={"y": []})
    assert select_definitions(trace_set) == [NAME, "x", "y"]


# ------------------------------------------------------------------------------------------ ranking


def test_authors_are_ranked(make):
    trace_set = two_definitions(
        make,
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
    assert trace_set.rank_authors(op_type="type_b") == [
        ("bob", SpeedupMetrics(avg_speedup=1.0, n_workloads=1))
    ]


def test_equals_are_ranked_by_name(make):
    trace_set = make.trace_set(
        *(run(make, author, 2.0) for author in ("zoe", "baseline", "alice", "bob")),
        authors=("zoe", "baseline", "alice", "bob"),
    )
    assert [author for author, _ in trace_set.rank_authors()] == ["alice", "bob", "zoe"]


def test_ranking_agrees_with_the_scores_of_authors(make):
    trace_set = two_definitions(
        make, ("baseline", "a", 4.0), ("alice", "a", 2.0), ("bob", "a", 1.0), ("baseline", "b", 1.0)
    )
    for author, score in trace_set.rank_authors():
        assert trace_set.get_author_score(author) == score


def test_ranking_needs_a_baseline_everywhere(make):
    trace_set = two_definitions(make)
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    with pytest.raises(ValueError, match="definition 'b' has no solution by the baseline author"):
        trace_set.rank_authors()
    assert trace_set.rank_authors(definition_name="a") == []


def test_definitions_without_solutions_need_no_baseline(make):
    trace_set = two_definitions(make, ("baseline", "a", 4.0), ("alice", "a", 2.0))
    del trace_set.solutions["b"]
    assert [author for author, _ in trace_set.rank_authors()] == ["alice"]


def test_an_empty_set_has_no_ranking():
    assert TraceSet().rank_authors() == []


# ------------------------------------------------------------------------------------------ summary


def test_summary(make):
    trace_set = make.trace_set(
        run(make, "baseline", 4.0),
        run(make, "alice", 2.0),
        run(make, "alice", uuid="w2", status="TIMEOUT"),
    )
    summary = trace_set.summary()
    assert (summary.total, summary.passed, summary.failed) == (3, 2, 1)
    assert [author for author, _ in summary.rankings] == ["alice"]
    assert summary.unranked == {}


def test_summary_of_nothing():
    summary = TraceSet().summary()
    assert (summary.total, summary.passed, summary.failed, summary.rankings) == (0, 0, 0, [])


def test_summary_says_what_cannot_be_ranked(make):
    trace_set = two_definitions(
        make, ("baseline", "a", 4.0), ("alice", "a", 2.0), ("bob", "b", 1.0)
    )
    trace_set.solutions["b"] = [make.solution("bob_b", "b", "bob")]
    summary = trace_set.summary()
    assert summary.total == 3
    assert [author for author, _ in summary.rankings] == ["alice"]
    assert list(summary.unranked) == ["b"]
    assert "no solution by the baseline author 'baseline'" in summary.unranked["b"]
    assert trace_set.summary(baseline_author="nobody").rankings == []
    assert list(trace_set.summary(baseline_author="nobody").unranked) == ["a", "b"]


def test_summary_says_where_a_latency_is_wrong(make):
    trace_set = make.trace_set(run(make, "baseline", 4.0), invalid(run(make, "alice"), 0.0))
    assert "latency of 0.0 ms" in trace_set.summary().unranked[NAME]


def test_summary_of_a_scope(make):
    trace_set = two_definitions(
        make, ("baseline", "a", 4.0), ("alice", "a", 2.0), ("bob", "b", 1.0)
    )
    assert trace_set.summary(op_type="type_a").total == 2
    assert trace_set.summary(definition_name="b").total == 1
    with pytest.raises(KeyError):
        trace_set.summary(definition_name="c")
    with pytest.raises(ValueError, match="not both"):
        trace_set.summary(op_type="x", definition_name="a")


def test_traces_of_solutions_that_are_not_there_are_counted(make):
    trace_set = make.trace_set(run(make, "stranger", 1.0), make.trace(None))
    summary = trace_set.summary()
    assert (summary.total, summary.passed) == (1, 1)


def test_a_summary_is_plain_data(make):
    summary = make.trace_set(run(make, "baseline", 4.0), run(make, "alice", 2.0)).summary()
    plain = summary.model_dump(mode="json")
    assert plain["rankings"][0][1]["avg_speedup"] == 2.0
    assert type(summary).model_validate(plain) == summary
    with pytest.raises(ValidationError):
        type(summary)(total="many", passed=0, failed=0)


# --------------------------------------------------------------------------------------- invariants

_LATENCY = st.floats(1e-3, 1e3)
_LATENCIES = st.dictionaries(st.sampled_from(["w1", "w2", "w3"]), _LATENCY)


@given(_LATENCIES, _LATENCIES)
def test_swapping_solution_and_baseline_on_one_workload_inverts_the_score(mine, theirs):
    shared = mine.keys() & theirs.keys()
    score = score_runs("s", "b", Runs({"s": mine, "b": theirs}, set()))
    if not shared:
        assert score is None
        return
    speedups = [theirs[uuid] / mine[uuid] for uuid in shared]
    assert min(speedups) * (1 - 1e-12) <= score.avg_speedup <= max(speedups) * (1 + 1e-12)
    assert score.n_workloads == len(shared)
    if len(shared) == 1:
        inverse = score_runs("b", "s", Runs({"s": mine, "b": theirs}, set()))
        assert math.isclose(score.avg_speedup * inverse.avg_speedup, 1.0)


@given(_LATENCIES.filter(bool), st.floats(0.5, 2.0))
def test_a_uniformly_faster_solution_scores_higher(theirs, factor):
    mine = {uuid: latency / factor for uuid, latency in theirs.items()}
    score = score_runs("s", "b", Runs({"s": mine, "b": theirs}, set()))
    assert math.isclose(score.avg_speedup, factor)


@given(st.data())
def test_digests_do_not_depend_on_the_order_of_traces(make, data):
    traces = [
        run(make, author, ms, uuid=uuid, status=status)
        for author, ms, uuid, status in data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["alice", "bob"]),
                    st.sampled_from([1.0, 2.0, 3.0]),
                    st.sampled_from(["w1", "w2"]),
                    st.sampled_from(["PASSED", "PASSED", "TIMEOUT"]),
                ),
                max_size=8,
            )
        )
    ]
    assert digest_runs(traces) == digest_runs(data.draw(st.permutations(traces)))


_SCORES = st.dictionaries(
    st.sampled_from(["alice", "bob", "zoe"]),
    st.floats(0, 100).map(lambda value: SpeedupMetrics(avg_speedup=value, n_workloads=1)),
)


@given(st.lists(_SCORES, max_size=5))
def test_rankings_are_sorted_complete_and_stable(per_definition):
    ranking = rank_scores(per_definition)
    keys = [(-score.avg_speedup, author) for author, score in ranking]
    assert keys == sorted(keys)
    assert {author for author, _ in ranking} == {author for one in per_definition for author in one}
    again = dict(rank_scores(per_definition[::-1]))
    assert again.keys() == dict(ranking).keys()
    for author, score in ranking:
        assert math.isclose(again[author].avg_speedup, score.avg_speedup, abs_tol=1e-12)
        assert score.n_definitions == sum(author in one for one in per_definition)


def test_combining_one_score_changes_nothing():
    score = SpeedupMetrics(avg_speedup=1.7, n_workloads=3)
    assert combine([score]) == score


def test_find_baseline(make):
    solutions = [make.solution("a"), make.solution("b", author="baseline")]
    assert find_baseline("d", solutions, "baseline").name == "b"

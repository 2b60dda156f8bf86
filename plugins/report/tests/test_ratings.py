"""fast_p, win rates, means and scores of authors and solutions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.ratings import fast_p, make_scoreboard
from fib_tests.results import a_result
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import fastp_curves, rate_authors


def by_name(ratings):
    return {rating.name: rating for rating in ratings}


def test_tasks_of_all_authors_count_for_each(make_result):
    results = [
        make_result("alice_a", workload="w1", latency_ms=1.0),
        make_result("alice_a", workload="w2", latency_ms=1.0),
        make_result("bob_b", workload="w1", latency_ms=0.5),
    ]
    curves = fastp_curves(results)
    assert curves["alice"][0] == (0.0, 1.0)
    assert curves["bob"][0] == (0.0, 0.5)
    assert list(curves) == ["alice", "bob"]
    found = by_name(rate_authors(results))
    assert (found["bob"].tasks, found["bob"].tried, found["bob"].solved) == (2, 1, 1)
    assert (found["alice"].fast[1.0], found["bob"].fast[1.0]) == (1.0, 0.5)
    assert (found["alice"].first, found["bob"].first) == (1, 1)


def test_a_pass_without_a_time_of_the_reference_is_no_task(make_result):
    results = [make_result(), make_result(workload="w2", reference_latency_ms=None)]
    assert fastp_curves(results)["alice"][0] == (0.0, 1.0)
    assert fastp_curves([make_result(reference_latency_ms=None)]) == {}
    assert rate_authors([make_result(reference_latency_ms=None)]) == []


def test_means_and_shares(make_result):
    results = [
        make_result(workload=f"w{n}", latency_ms=2.0 / speedup)
        for n, speedup in enumerate((1.0, 1.0, 2.0, 8.0))
    ]
    results.append(make_result(workload="w9", status="TIMEOUT"))
    (one,) = rate_authors(results, thresholds=(1.0, 2.0))
    assert one.speedup.value == pytest.approx(2.0)
    assert one.mean_speedup == pytest.approx(3.0)
    # More than p times as fast, of all tasks; at least p times as fast, of those solved.
    assert dict(one.fast) == {1.0: 2 / 5, 2.0: 1 / 5}
    assert dict(one.wins) == {1.0: 1.0, 2.0: 0.5}
    assert (one.tasks, one.solved, one.compared, one.definitions) == (5, 4, 4, 1)


def test_compared_with_an_author_only_their_tasks_count(make_result):
    results = [
        make_result("baseline_x", workload="w1", latency_ms=2.0),
        make_result("baseline_y", workload="w1", latency_ms=1.0),
        make_result("baseline_x", workload="w2", status="TIMEOUT"),
        make_result("alice_a", workload="w1", latency_ms=0.25),
        make_result("alice_a", workload="w2", latency_ms=0.25),
    ]
    found = by_name(rate_authors(results, "baseline"))
    assert (found["alice"].speedup.value, found["alice"].tasks) == (4.0, 1)
    assert (found["baseline"].speedup.value, found["baseline"].fast[1.0]) == (1.0, 0.0)
    assert found["baseline"].wins[1.0] == 1.0


def test_a_solution_is_only_asked_for_its_own_definition(make_result):
    results = [
        make_result("alice_a"),
        make_result("alice_b", definition="other", latency_ms=0.5),
        make_result("bob_c", definition="other", workload="w2", status="TIMEOUT"),
    ]
    found = by_name(rate_authors(results, group="solution"))
    tasks = {name: rating.tasks for name, rating in found.items()}
    assert tasks == {"alice_a": 1, "alice_b": 2, "bob_c": 2}
    assert found["bob_c"].speedup is None


def test_ratings_share_a_rank_where_intervals_overlap(make_result):
    base = make_result("base_1", latency_ms=4.0, interval_ms=(3.9, 4.1))
    runs = [
        make_result("a_1", latency_ms=1.0, interval_ms=(0.8, 1.2)),
        make_result("b_1", latency_ms=1.1, interval_ms=(0.9, 1.3)),
        make_result("c_1", latency_ms=2.0, interval_ms=(1.9, 2.1)),
        make_result("d_1", status="TIMEOUT"),
    ]
    found = by_name(rate_authors([base, *runs], "base"))
    ranks = {name: one.rank for name, one in found.items()}
    assert ranks == {"a": "=1", "b": "=1", "c": "3", "base": "4", "d": "5"}
    assert found["base"].speedup.ends == (1.0, 1.0)  # it is itself: no error
    assert found["a"].speedup.low < found["a"].speedup.value == 4.0 < found["a"].speedup.high


SOME = st.builds(
    lambda author, definition, workload, latency, reference: a_result(
        f"{author}_{definition}", definition=definition, workload=workload,
        status="PASSED" if latency else "TIMEOUT",
        latency_ms=latency, reference_latency_ms=reference if latency else None,
    ),
    st.sampled_from("abc"), st.sampled_from("de"), st.sampled_from("wxyz"),
    st.none() | st.floats(1e-3, 1e3), st.none() | st.floats(1e-3, 1e3),
)  # fmt: skip


@given(st.lists(SOME, max_size=20), st.sampled_from([None, "a"]))
def test_measures_hold_together(results, baseline):
    for one in rate_authors(results, baseline, (0.0, 1.0, 2.0)):
        assert 0 <= one.compared <= one.solved <= one.tried <= one.tasks
        assert 1.0 >= one.fast[0.0] >= one.fast[1.0] >= one.fast[2.0] >= 0.0
        assert all(one.wins[p] * one.compared >= one.fast[p] * one.tasks - 1e-9 for p in one.fast)
        if one.speedup is not None:
            assert one.speedup.value <= one.mean_speedup * (1 + 1e-9)
        if baseline is None:
            share = [s for p, s in fastp_curves(results)[one.name] if p <= 1.0][-1]
            assert share == pytest.approx(one.fast[1.0])


@given(st.lists(st.floats(0.01, 100.0), max_size=30), st.integers(0, 10), st.floats(0.0, 200.0))
def test_fast_p_is_the_share_of_tasks_that_are_faster(speedups, unsolved, p):
    total = len(speedups) + unsolved
    corners = fast_p(speedups, total)
    if not total:
        assert corners == []
        return
    share = [share for corner, share in corners if corner <= p][-1]
    assert share == pytest.approx(sum(speedup > p for speedup in speedups) / total)


ALL = Selection()


def test_authors_are_compared_with_the_baseline_on_each_device(two_definitions):
    two_definitions.trace("bob_triple", definition="triple", hardware="H200")
    trace_set = TraceSet.from_path(two_definitions.root)
    standings, over = make_scoreboard(trace_set, ALL)
    assert over == "baseline"
    rows = [(s.hardware, s.rating.name, s.score, s.rating.speedup.value) for s in standings]
    assert rows == [
        ("Test CPU", "alice", 4.0, pytest.approx(4.0)),
        ("Test CPU", "baseline", None, 1.0),
    ]
    standings, _ = make_scoreboard(trace_set, ALL, solutions=True)
    scores = {s.rating.name: s.score for s in standings}
    assert scores == {"alice_double": 4.0, "baseline_double": None}
    assert scores["alice_double"] == trace_set.get_solution_score("alice_double").avg_speedup


def test_one_failure_makes_the_score_zero_and_not_the_means(maker):
    maker.sound()
    maker.workload(uuid="w3", axes={"N": 64})
    maker.trace("alice_double", uuid="w3", status="TIMEOUT", axes={"N": 64})
    maker.trace("baseline_double", uuid="w3", axes={"N": 64})
    standings, _ = make_scoreboard(TraceSet.from_path(maker.root), ALL)
    alice = next(s for s in standings if s.rating.name == "alice")
    assert (alice.score, alice.rating.speedup.value) == (0.0, pytest.approx(4.0))
    assert alice.rating.fast[1.0] == pytest.approx(2 / 3)

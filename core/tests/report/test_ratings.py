"""fast_p, win rates and means of authors and solutions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report import Result, fastp_curves, rate_authors
from flashinfer_bench.report.ratings import by_solution


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


def test_the_fastest_solution_of_an_author_counts(make_result):
    results = [make_result("alice_slow", latency_ms=4.0), make_result("alice_fast", latency_ms=0.5)]
    assert fastp_curves(results)["alice"] == [(0.0, 1.0), (4.0, 0.0)]
    (rating,) = rate_authors(results)
    assert (rating.speedup, rating.compared) == (4.0, 1)


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
    assert one.speedup == pytest.approx(2.0)
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
    assert (found["alice"].speedup, found["alice"].tasks) == (4.0, 1)
    assert (found["baseline"].speedup, found["baseline"].fast[1.0]) == (1.0, 0.0)
    assert found["baseline"].wins[1.0] == 1.0


def test_a_solution_is_only_asked_for_its_own_definition(make_result):
    results = [
        make_result("alice_a"),
        make_result("alice_b", definition="other", latency_ms=0.5),
        make_result("bob_c", definition="other", workload="w2", status="TIMEOUT"),
    ]
    found = by_name(rate_authors(results, group=by_solution))
    assert {name: rating.tasks for name, rating in found.items()} == {
        "alice_a": 1,
        "alice_b": 2,
        "bob_c": 2,
    }
    assert found["bob_c"].speedup is None


def test_the_best_come_first(make_result):
    results = [make_result("c_1", latency_ms=4.0), make_result("b_1", latency_ms=0.5)]
    results += [make_result("a_1", latency_ms=1.0), make_result("d_1", status="TIMEOUT")]
    assert [rating.name for rating in rate_authors(results)] == ["b", "a", "c", "d"]


SOME = st.builds(
    lambda author, definition, workload, latency, reference: Result(
        definition, "op", f"{author}_{definition}", author, "python", workload, {}, "gpu",
        EvaluationStatus.PASSED if latency else EvaluationStatus.TIMEOUT, "2026-01-01", "",
        latency, reference if latency else None,
        reference / latency if latency and reference else None,
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
            assert one.speedup <= one.mean_speedup * (1 + 1e-9)
        if baseline is None:
            share = [s for p, s in fastp_curves(results)[one.name] if p <= 1.0][-1]
            assert share == pytest.approx(one.fast[1.0])

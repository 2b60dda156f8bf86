"""Timers and cache modes are never mixed: latest results, scores, ratings, regressions."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.errors import UnknownNameError
from flashinfer_bench.report import (
    Selection,
    best_solutions,
    collect_results,
    compare_dates,
    latest_results,
    rate_authors,
    score_solutions,
    summarize,
    with_intervals,
)
from flashinfer_bench.report.baseline import NamedBaseline
from flashinfer_bench.report.conditions import UNTOLD, label_of, mixtures, split_by_setting
from flashinfer_bench.report.scoreboard import make_scoreboard

EVENT, CUPTI = Clock("cuda_event", "cold", "rse", "beside"), Clock("cupti", "cold", "rse", "beside")
WARM = Clock("cupti", "warm")


def test_what_passed_is_kept_once_with_each_timer(make_result):
    runs = [
        make_result(clock=clock, timestamp=f"2026-01-0{day}")
        for day, clock in ((1, EVENT), (2, CUPTI), (3, EVENT), (4, WARM))
    ]
    assert latest_results(runs) == [runs[2], runs[1], runs[3]] or {
        (one.clock, one.timestamp) for one in latest_results(runs)
    } == {(EVENT, "2026-01-03"), (CUPTI, "2026-01-02"), (WARM, "2026-01-04")}


def test_a_failure_replaces_all_before_it_and_a_pass_replaces_failures(make_result):
    passed = make_result(clock=EVENT, timestamp="2026-01-01")
    failed = make_result(status="TIMEOUT", timestamp="2026-01-02")
    again = make_result(clock=CUPTI, timestamp="2026-01-03")
    assert latest_results([passed, failed]) == [failed]
    assert latest_results([passed, failed, again]) == [again]


def test_a_failure_counts_with_every_timer_of_its_definition(make_result):
    event, cupti = make_result(clock=EVENT), make_result("bob_1", clock=CUPTI)
    failed = make_result("carl_1", status="TIMEOUT")
    elsewhere = make_result("carl_2", status="TIMEOUT", definition="other")
    far = make_result("carl_3", status="TIMEOUT", hardware="Another")
    found = split_by_setting([event, cupti, failed, elsewhere, far])
    assert found == {
        ("Another", UNTOLD): [far],
        ("Test CPU", ("cuda_event", "cold")): [event, failed, elsewhere],
        ("Test CPU", ("cupti", "cold")): [cupti, failed, elsewhere],
    }
    assert mixtures(found) == {"Test CPU": [("cuda_event", "cold"), ("cupti", "cold")]}


def test_labels():
    assert label_of(("cpu", "warm")) == "cpu, warm"
    assert label_of(UNTOLD) == "unknown timer, unknown cache mode"


def test_there_is_a_best_for_each_timer(make_result):
    runs = [
        make_result("alice_1", clock=EVENT, latency_ms=1.0),
        make_result("bob_1", clock=CUPTI, latency_ms=0.1),
        make_result("alice_1", clock=CUPTI, latency_ms=0.2),
    ]
    best = best_solutions(score_solutions(runs))
    assert [(one.score.timer, one.score.solution, one.tried) for one in best] == [
        ("cuda_event", "alice_1", 1),
        ("cupti", "bob_1", 2),
    ]


def test_overlapping_intervals_share_a_rank(make_result):
    runs = [
        make_result("a_1", latency_ms=1.0, interval_ms=(0.9, 1.1)),
        make_result("b_1", latency_ms=1.05, interval_ms=(1.0, 1.2)),
        make_result("c_1", latency_ms=2.0, interval_ms=(1.9, 2.1)),
        make_result("d_1", status="TIMEOUT"),
    ]
    scores = score_solutions(runs)
    assert [(one.solution, one.rank) for one in scores] == [
        ("a_1", "=1"),
        ("b_1", "=1"),
        ("c_1", "3"),
        ("d_1", None),
    ]
    (best,) = best_solutions(scores)
    assert [one.solution for one in best.ties] == ["b_1"]
    assert best.measured_lead.low < 1.0 < best.measured_lead.value == best.lead


def test_who_passed_on_fewer_workloads_has_no_rank(make_result):
    runs = [make_result("a_1", workload=name, latency_ms=9.0) for name in ("w1", "w2")]
    scores = score_solutions([*runs, make_result("b_1", latency_ms=0.1)])
    assert {one.solution: one.rank for one in scores} == {"a_1": "1", "b_1": None}


def test_what_a_score_tells_of_its_samples(make_result):
    runs = [
        make_result(
            workload="w1", samples_ms=(1.0, 2.0, 9.0), dropped=1, dropped_rows=((2, 3),),
            clock=EVENT, interval_ms=(1.0, 2.0),
        ),
        make_result(workload="w2", samples_ms=(1.0,), clock=EVENT._replace(reference="before")),
        make_result(workload="w3", status="TIMEOUT"),
    ]  # fmt: skip
    (score,) = score_solutions(runs)
    assert (score.samples, score.dropped, score.without_interval) == (4, 1, 1)
    assert score.references == {"before": 1, "beside": 1}
    assert score.stop_rules == ("rse",)
    assert score.interval_ms is None
    assert runs[0].counted_ms == (1.0, 2.0)
    assert runs[0].dropped_ms == (9.0,)


def test_rows_of_dropped_samples_may_reach_beyond_the_end(make_result):
    result = make_result(samples_ms=(1.0, 2.0), dropped=1, dropped_rows=((1, 1 << 60),))
    assert result.counted_ms == (1.0,)
    assert result.dropped_ms == (2.0,)


def test_intervals_are_computed_from_samples_that_count(make_result):
    samples = (5.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    old = make_result(samples_ms=samples, dropped=1, dropped_rows=((0, 1),), latency_ms=1.3)
    bare = make_result("b_1")
    known = make_result("c_1", samples_ms=samples, interval_ms=(0.1, 9.0))
    failed = make_result("d_1", status="TIMEOUT")
    filled = with_intervals([old, bare, known, failed])
    low, high = filled[0].interval_ms
    assert 1.0 <= low <= 1.3 <= high <= 1.6
    assert filled[1:] == [bare, known, failed]


def test_intervals_of_stored_traces(maker):
    maker.definition()
    maker.solution()
    maker.workload()
    maker.trace(samples_ms=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    found = collect_results(TraceSet.from_path(maker.root))
    (filled,) = with_intervals(found)
    assert filled.interval_ms is not None
    assert filled.samples_ms == found[0].samples_ms
    assert filled.log == found[0].log


def test_ratings_share_a_rank_where_intervals_overlap(make_result):
    base = make_result("base_1", latency_ms=4.0, interval_ms=(3.9, 4.1))
    runs = [
        make_result("a_1", latency_ms=1.0, interval_ms=(0.8, 1.2)),
        make_result("b_1", latency_ms=1.1, interval_ms=(0.9, 1.3)),
        make_result("c_1", latency_ms=2.0, interval_ms=(1.9, 2.1)),
        make_result("d_1", status="TIMEOUT"),
    ]
    rated = rate_authors([base, *runs], "base")
    assert {one.name: one.rank for one in rated} == {
        "a": "=1",
        "b": "=1",
        "c": "3",
        "base": "4",
        "d": "5",
    }
    by_name = {one.name: one for one in rated}
    assert by_name["base"].interval == (1.0, 1.0)  # it is itself: no error
    low, high = by_name["a"].interval
    assert low < by_name["a"].speedup == 4.0 < high


def test_a_solution_as_the_baseline(make_result):
    runs = [
        make_result("base_1", latency_ms=4.0, interval_ms=(3.9, 4.1)),
        make_result("base_2", latency_ms=2.0, interval_ms=(1.9, 2.1)),
        make_result("a_1", latency_ms=1.0, interval_ms=(0.8, 1.2)),
        make_result("b_1", latency_ms=1.0, clock=WARM),
    ]
    scores = {one.solution: one for one in score_solutions(runs)}
    named, author = NamedBaseline(runs, "base_1"), NamedBaseline(runs, "base")
    assert named.against(scores["a_1"]).speedup.value == pytest.approx(4.0)
    assert author.against(scores["a_1"]).speedup.value == pytest.approx(2.0)
    assert author.against(scores["base_2"]).speedup.ends == (1.0, 1.0)
    assert named.against(scores["b_1"]) is None  # of another cache mode
    with pytest.raises(UnknownNameError, match="base_3") as error:
        NamedBaseline(runs, "base_3")
    assert "base_1" in error.value.hint


def test_latencies_of_other_timers_are_no_regression(make_result):
    def run(clock, day, latency, **changes):
        return make_result(
            clock=clock, timestamp=f"2026-01-{day:02}T00:00:00", latency_ms=latency, **changes
        )

    since = datetime(2026, 1, 10, tzinfo=timezone.utc)
    changed = compare_dates([run(EVENT, 1, 1.0), run(CUPTI, 11, 2.0)], since)
    assert (changed.changes, changed.compared, changed.other_clock) == ((), 1, 1)
    runs = [run(CUPTI, 1, 1.0), run(EVENT, 2, 9.0), run(CUPTI, 11, 2.0)]
    (change,) = compare_dates(runs, since).changes
    assert (change.kind, change.ratio, change.interval) == ("slower", 2.0, None)
    failed = run(EVENT, 3, None, status="TIMEOUT")
    (change,) = compare_dates([*runs[:2], failed, runs[2]], since).changes
    assert change.kind == "fixed"
    (change,) = compare_dates([*runs[:2], run(EVENT, 12, None, status="TIMEOUT")], since).changes
    assert change.kind == "broken"


def test_the_ratio_of_a_regression_has_an_interval(make_result):
    before = make_result(latency_ms=1.0, interval_ms=(0.9, 1.1))
    after = make_result(latency_ms=2.0, interval_ms=(1.9, 2.1), timestamp="2026-02-01")
    (change,) = compare_dates([before, after], datetime(2026, 1, 10, tzinfo=timezone.utc)).changes
    assert change.interval[0] < 2.0 < change.interval[1]


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


def test_the_scoreboard_is_split_too(mixed):
    board = make_scoreboard(mixed, Selection())
    found = {(one.timer, one.rating.name) for one in board.standings}
    assert {timer for timer, _ in found} == {""} | {
        one.timer for one in board.standings if one.timer
    }
    assert board.mixtures == {"Test CPU": [("", ""), ("cuda_event", "cold"), ("cupti", "cold")]}

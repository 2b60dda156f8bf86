"""What became worse, or better, between two dates."""

from datetime import datetime, timedelta, timezone

import pytest

from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.report import compare_dates, parse_date

MARCH = datetime(2026, 3, 1, tzinfo=timezone.utc)
OLD, NEW, NEWEST = "2026-02-01T00:00:00", "2026-03-02T00:00:00.5", "2026-04-01T00:00:00Z"


@pytest.fixture
def changes(make_result):
    """Makes two results of one task and compares them."""

    def make(before, after, **options):
        results = [make_result(timestamp=OLD, **before), make_result(timestamp=NEW, **after)]
        return compare_dates(results, MARCH, **options)

    return make


@pytest.mark.parametrize(
    ("before", "after", "kind", "worse"),
    [
        ({}, {"status": "TIMEOUT"}, "broken", True),
        ({"status": "TIMEOUT"}, {}, "fixed", False),
        ({"latency_ms": 1.0}, {"latency_ms": 1.2}, "slower", True),
        ({"latency_ms": 1.2}, {"latency_ms": 1.0}, "faster", False),
        ({}, {}, None, False),
        ({"latency_ms": 1.0}, {"latency_ms": 1.049}, None, False),
        ({"status": "TIMEOUT"}, {"status": "COMPILE_ERROR"}, None, False),
    ],
)
def test_kinds_of_changes(changes, before, after, kind, worse):
    found = changes(before, after)
    assert [one.kind for one in found.changes] == ([kind] if kind else [])
    assert len(found.regressions) == worse
    assert (found.compared, found.added) == (1, 0)


def test_overlapping_samples_are_no_change(changes):
    before = {"latency_ms": 1.0, "samples_ms": (0.9, 1.0, 1.1, 1.3)}
    after = {"latency_ms": 1.2, "samples_ms": (1.0, 1.2, 1.3, 1.4)}
    assert changes(before, after).changes == ()
    apart = {"latency_ms": 1.6, "samples_ms": (1.5, 1.6, 1.7, 1.8)}
    assert len(changes(before, apart).changes) == 1
    few = {"latency_ms": 1.2, "samples_ms": (1.0, 1.2)}
    assert len(changes(before, few).changes) == 1  # two say nothing


def test_only_the_latest_on_each_side_counts(make_result):
    results = [
        make_result(timestamp="2026-02-20T00:00:00", latency_ms=1.0),
        make_result(timestamp=OLD, latency_ms=9.0),
        make_result(timestamp=NEWEST, latency_ms=1.0),
        make_result(timestamp=NEW, latency_ms=5.0),
    ]
    assert compare_dates(results, MARCH).changes == ()
    until = parse_date("2026-03-31", end=True)
    (change,) = compare_dates(results, MARCH, until).changes
    assert (change.kind, change.ratio.value) == ("slower", 5.0)


def test_the_worst_comes_first(make_result):
    pairs = {
        "faster": (2.0, 1.0), "slower": (1.0, 2.0), "slowest": (1.0, 9.0), "fixed": (None, 1.0),
        "broken": (1.0, None),
    }  # fmt: skip
    results = [
        make_result(name, timestamp=time, latency_ms=ms, status="PASSED" if ms else "TIMEOUT")
        for name, both in pairs.items()
        for time, ms in zip((OLD, NEW), both, strict=True)
    ]
    found = compare_dates(results, MARCH)
    order = ["broken", "slowest", "slower", "fixed", "faster"]
    assert [change.after.solution for change in found.changes] == order


def test_latencies_of_other_timers_are_no_regression(make_result):
    def run(clock, day, latency, **changes):
        return make_result(
            clock=clock, timestamp=f"2026-01-{day:02}T00:00:00", latency_ms=latency, **changes
        )

    event, cupti = (Clock(timer, "cold", "rse", "beside") for timer in ("cuda_event", "cupti"))
    since = datetime(2026, 1, 10, tzinfo=timezone.utc)
    changed = compare_dates([run(event, 1, 1.0), run(cupti, 11, 2.0)], since)
    assert (changed.changes, changed.compared, changed.other_clock) == ((), 1, 1)
    runs = [run(cupti, 1, 1.0), run(event, 2, 9.0), run(cupti, 11, 2.0)]
    (change,) = compare_dates(runs, since).changes
    assert (change.kind, *change.ratio) == ("slower", 2.0, None)
    failed = run(event, 3, None, status="TIMEOUT")
    (change,) = compare_dates([*runs[:2], failed, runs[2]], since).changes
    assert change.kind == "fixed"
    (change,) = compare_dates([*runs[:2], run(event, 12, None, status="TIMEOUT")], since).changes
    assert change.kind == "broken"


def test_time_stamps_that_are_no_dates_are_told(make_result):
    found = compare_dates([make_result(timestamp="yesterday")], MARCH)
    assert (found.unreadable, found.compared, found.added) == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01", MARCH),
        (" 2026-03-01T12:30 ", MARCH + timedelta(hours=12, minutes=30)),
        ("2026-03-01T01:00:00+01:00", MARCH),
        ("2026-03-01T00:00:00Z", MARCH),
        ("2026-03-01T00:00:00.123456789Z", MARCH + timedelta(microseconds=123456)),
        ("2026-03-01 00:00:00.5", MARCH + timedelta(milliseconds=500)),
    ],
)
def test_dates(text, moment):
    assert parse_date(text) == moment


@pytest.mark.parametrize("text", ["", "d", "tomorrow", "2026-13-01", "-3d", "9" * 30 + "d", "٣d"])
def test_what_is_no_date(text):
    with pytest.raises(ConfigError, match="invalid date"):
        parse_date(text)

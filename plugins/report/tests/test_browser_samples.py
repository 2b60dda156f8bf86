"""Intervals and distributions in a real browser."""

import itertools
import json

import pytest

from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.report import PageInfo, render_page

INFO = PageInfo("A title", "/data/set", "2026-01-01 00:00 UTC")
CLOCK = Clock("cupti", "cold", "rse", "before")
SAMPLES = (*(1.0 + n / 1000 for n in range(100)), 9.0)
FIRST_TABLE = (
    "[...document.querySelectorAll('#view table')[0].rows].slice(1).map(r => r.cells[{}].innerText)"
)
TIMING = {"outcome": "target reached", "watched": {"nvml": {"sm_mhz": [1755, 1980, 1980]}}}


@pytest.fixture
def open_page(show):
    """Opens the page of some results."""
    return lambda results: show(render_page(results, INFO), "#/definition/double")


@pytest.fixture
def measured(make_result):
    """A run with everything: samples, an outlier, dropped ones, intervals."""

    def make(solution="a_1", **changes):
        fields = {
            "latency_ms": 1.05, "samples_ms": SAMPLES, "interval_ms": (1.0, 1.1), "clock": CLOCK,
            "speedup_interval": (1.5, 2.5), "timing": TIMING, "dropped": 2,
            "dropped_rows": ((10, 12),),
        }  # fmt: skip
        return make_result(solution, **{**fields, **changes})

    return make


def count(browser, selector):
    return browser.run(f"document.querySelectorAll({json.dumps(selector)}).length")


def test_samples_outliers_and_dropped_ones_are_drawn(open_page, measured):
    browser = open_page([measured(), measured("b_1", latency_ms=1.3, interval_ms=(1.2, 1.4))])
    browser.wait("document.querySelectorAll('.strip circle.sample').length > 0")
    assert count(browser, ".strip") == 2
    assert count(browser, ".strip circle.gone") == 2 * 2
    assert count(browser, ".strip circle.far") == 2
    assert count(browser, ".strip circle.sample") == 2 * (32 + 2)
    assert count(browser, ".strip rect.band") == 2


def test_intervals_and_ranks_in_the_tables(open_page, measured):
    slow = measured("c_1", latency_ms=3.5, interval_ms=(3.0, 4.0))
    browser = open_page([measured(), measured("b_1", latency_ms=1.06), slow])
    browser.wait("document.querySelectorAll('#view table').length === 3")
    assert browser.run(FIRST_TABLE.format(3)) == ["=1", "=1", "3"]
    shown = browser.run("document.querySelectorAll('#view table')[2].innerText")
    assert "±4.8%" in shown
    assert "101 (−2)" in shown
    assert "1.9× ±26%" in shown


def test_doubts_are_shown_wherever_a_latency_is(open_page, visit, measured):
    notes = {
        "a_1": '{"disputed": "unaccounted time"}',
        "b_1": '{"replayable": true}',
        "c_1": '{"loose_tolerance": true}',
    }
    results = [measured(name, note=note) for name, note in notes.items()]
    marked = {"a_1": "disputed", "b_1": "replayable", "c_1": "loose tolerance"}
    browser = open_page(results)
    for view in ("leaderboard", "definitions", "solutions", "workloads", "evaluations",
                 "definition/double", "workload/double/w1"):  # fmt: skip
        visit(view)
        rows = browser.run("[...document.querySelectorAll('#view tbody tr')].map(r => r.innerText)")
        for name, word in marked.items():
            mine = [row for row in rows if name in row and "ms" in row]
            assert all(word in row for row in mine), (view, name, mine)
            assert mine or view in ("leaderboard", "definitions", "workloads")
    for name, word in marked.items():
        for view in (f"solution/{name}", f"evaluation/{name}/w1"):
            visit(view)
            assert word in browser.run("document.querySelector('#view').innerText")


def test_failures_that_are_close_are_one_mark_with_their_number(open_page, measured, make_result):
    sizes = (1, 1000, 1001, 1002, 5000)
    failed = [
        make_result(f"f_{n}", workload=f"w{size}", axes={"N": size}, status=status, log="bad")
        for size in sizes
        for n, status in enumerate(["TIMEOUT"] * 3 + ["RUNTIME_ERROR"] * 20)
    ]
    browser = open_page(
        [measured(workload=f"w{size}", axes={"N": size}) for size in sizes] + failed
    )
    browser.wait("document.querySelectorAll('#view .cluster').length === 6")
    numbers = "[...document.querySelectorAll('.cluster text')].map(t => t.textContent)"
    assert browser.run(numbers) == ["20", "60", "20", "3", "9", "3"]
    places = browser.run(
        "[...document.querySelectorAll('.cluster circle')].map(c => c.getBoundingClientRect())"
        ".map(r => [r.left, r.top, r.right, r.bottom])"
    )
    for one, other in itertools.combinations(places, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    browser.click(".cluster")
    browser.wait("document.body.dataset.view === 'workload'")
    assert browser.run("location.hash") == "#/workload/double/w1?status=RUNTIME_ERROR"
    assert browser.run("document.querySelector('.count').innerText") == "20 of 24 evaluations"


def test_other_timers_are_shown_apart(open_page, measured):
    other = CLOCK._replace(timer="cuda_event")
    failed = measured("c_1", status="TIMEOUT", samples_ms=(), interval_ms=None, clock=Clock(),
                      speedup_interval=None, dropped=0, dropped_rows=(), timing={})  # fmt: skip
    browser = open_page([measured(), measured("b_1", clock=other), failed])
    browser.wait("document.querySelector('#view .controls select')")
    choices = "[...document.querySelector('#view .controls select').options].map(o => o.text)"
    assert browser.run(choices) == ["Test CPU · cuda_event cold", "Test CPU · cupti cold"]
    names = FIRST_TABLE.format(0)
    assert [one.split()[0] for one in browser.run(names)] == ["b_1", "c_1"]
    browser.run(
        "(() => { const s = document.querySelector('#view .controls select'); s.selectedIndex = 1;"
        "s.dispatchEvent(new Event('change')); })()"
    )
    assert [one.split()[0] for one in browser.run(names)] == ["a_1", "c_1"]


def test_a_full_page_says_what_it_lacks(open_page, measured, monkeypatch):
    monkeypatch.setattr("fib_report.page.payload._SHAPES_BYTES", 0)
    browser = open_page([measured()])
    browser.wait("document.querySelectorAll('#view circle.dot').length === 1")
    assert count(browser, "circle.sample") == 0

"""Pages of solutions, workloads, evaluations and two runs; downloads; accessibility."""

import csv
import json
from urllib.parse import quote

import pytest

from fib_judge.calibration import Ceilings, store_ceilings
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.selection import Selection
from flashinfer_bench.report import (
    PageInfo,
    collect_results,
    find_gaps,
    latest_results,
    render_page,
    with_intervals,
)

ALICE = '"""Doubles."""\n\ndef run(x):\n    # <script>window.pwned = 1</script>\n    return x + x\n'
BOB = ALICE.replace("x + x", "2 * x")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
VIEWS = (
    "leaderboard", "definitions", "definition/double", "solutions", "solution/alice_double",
    "solution/alice_double?with=bob_double", "workloads", "workload/double/w1", "evaluations",
    "evaluation/alice_double/w2", "evaluation/bob_double/w2", "failures", "compare", "coverage",
)  # fmt: skip


@pytest.fixture
def page(maker, tmp_path, monkeypatch):
    """A page of a dataset with three runs, a failure, a tie, doubts and a calibrated device."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    store_ceilings(Ceilings("cpu", "Test CPU", {1 << 10: 1e6}, {"float32": 1e9}, 1e-6, "2", "now"))
    maker.definition()
    maker.solution("alice_double", author='=say("1,2")', code=ALICE)
    maker.solution("bob_double", author="bob", code=BOB)
    settings = {"seed": 7, "driver": "570.1", "settings": {"rtol": 0.5}}
    for day, slower in (("01", 3.0), ("02", 1.0), ("03", 1.1)):
        for uuid, size in (("w1", 16), ("w2", 512)):
            latency = slower * size / 16
            maker.trace(
                uuid=uuid, axes={"N": size}, latency_ms=latency, samples_ms=[latency] * 9,
                interval_ms=[latency * 0.93, latency * 1.07], timestamp=f"2026-01-{day}T10:00:00",
                provenance=settings,
            )  # fmt: skip
    bob = {"solution": "bob_double", "timestamp": "2026-01-03T10:01:00"}
    maker.trace(**bob, axes={"N": 16}, latency_ms=1.12, interval_ms=[1.0, 1.2])
    log = "begin\nValueError: 12 is wrong\nend"
    maker.trace(**bob, uuid="w2", axes={"N": 512}, status="RUNTIME_ERROR", log=log)
    maker.workload("double", "w1")
    trace_set = TraceSet.from_path(maker.root)
    results = with_intervals(latest_results(collect_results(trace_set)))
    info = PageInfo("A title", "/data/set", "2026-01-01 00:00 UTC")
    return render_page(results, info, find_gaps(trace_set, Selection()), trace_set)


@pytest.fixture
def view(show, page):
    """Shows a view of that page."""
    return lambda fragment: show(page, f"#/{fragment}")


def text(browser, selector="#view"):
    return browser.run(f"document.querySelector({json.dumps(selector)}).innerText")


def table(browser, number=0):
    """Return the cells of a table of the view, row by row."""
    return browser.run(
        f"[...document.querySelectorAll('#view table')[{number}].querySelectorAll('tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )


def test_a_solution_has_its_source_and_the_history_of_its_evaluations(view):
    browser = view("solution/alice_double")
    assert text(browser, "pre.code") == ALICE.strip()
    assert text(browser, ".code-comment") == "# <script>window.pwned = 1</script>"
    rows = [(row[1], row[2], row[3], row[-1]) for row in table(browser, 1) if row[1] == "N=16"]
    assert rows == [
        ("N=16", "1.1 ms ±7%", "≈ 1.1×", "2026-01-03 10:00:00"),
        ("N=16", "1 ms ±7%", "0.333×", "2026-01-02 10:00:00"),
        ("N=16", "3 ms ±7%", "–", "2026-01-01 10:00:00"),
    ]
    assert browser.run("document.querySelectorAll('#view tr.old').length") == 4


def test_the_difference_of_two_solutions_has_an_address(view):
    browser = view("solution/alice_double")
    browser.run(
        "(() => { const s = [...document.querySelectorAll('#view select')].pop();"
        "s.value = 'bob_double'; s.dispatchEvent(new Event('change')); })()"
    )
    browser.wait("document.querySelector('.code-added')")
    for _ in range(2):
        assert text(browser, ".code-removed") == "-     return 2 * x"
        assert text(browser, ".code-added") == "+     return x + x"
        assert browser.run("location.hash") == "#/solution/alice_double?with=bob_double"
        browser = view("solution/alice_double?with=bob_double")
        browser.wait("document.querySelector('.code-added')")


def test_a_workload_has_its_ranking_and_its_limit(view):
    browser = view("workload/double/w1")
    facts = text(browser, "#view dl")
    assert "128 B" in facts
    assert "128 µs on Test CPU, limited by memory bandwidth" in facts
    rows = table(browser)
    assert [row[1:4] for row in rows] == [
        ["alice_double", "=1", "1.1 ms ±7% tied"],
        ["bob_double", "=1", "1.12 ms ±8.9% tied"],
    ]
    assert [row[4] for row in rows] == ["12%", "11%"]  # 128 B at 1 MB/s take 128 us


def test_a_roofline_is_drawn(view):
    browser = view("definition/double")
    browser.wait("document.querySelectorAll('figure svg polyline.limit').length === 2")
    drawn = "[...document.querySelectorAll('figure')].find(f => f.innerText.startsWith('Roofline'))"
    assert "a lower bound" in browser.run(f"{drawn}.innerText")
    assert browser.run(f"{drawn}.querySelectorAll('circle.dot').length") == 3
    heights = f"[...{drawn}.querySelectorAll('circle.dot')].map(c => Number(c.getAttribute('cy')))"
    roof = f"{drawn}.querySelector('.limit').getAttribute('points').split(' ')[0].split(',')[1]"
    assert min(browser.run(heights)) > float(browser.run(roof))  # below the roof


def test_an_evaluation_has_its_reason_log_and_settings(view):
    browser = view("evaluation/bob_double/w2")
    assert text(browser, ".reason") == text(browser, "mark") == "ValueError: 12 is wrong"
    browser = view(f"evaluation/alice_double/w1?time={quote('2026-01-02 10:00:00')}")
    browser.wait("document.querySelector('#view').innerText.includes('Settings and environment')")
    told = text(browser)
    for line in ("Seed\n7", "Driver\n570.1", "Settings\nrtol 0.5", "A later evaluation supersedes"):
        assert line in told


def test_two_runs_side_by_side(view):
    browser = view("compare")
    assert "2 ambiguous" in text(browser)
    before, after = (quote(f"2026-01-0{day} 10:00:00") for day in (1, 2))
    browser = view(f"compare?before={before}&after={after}")
    assert "2 faster" in text(browser)
    assert {(row[0], row[-1]) for row in table(browser)} == {("faster", "0.333×")}
    sides = {(row[4], row[5]) for row in table(browser)}
    assert sides == {("3 ms ±7%", "1 ms ±7%"), ("96 ms ±7%", "32 ms ±7%")}


def test_filters_stay_in_the_address_and_what_is_shown_can_be_downloaded(view, browser, tmp_path):
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))

    def saved(name, more=""):
        view(name + more)
        browser.click("#view .csv")
        file = tmp_path / f"{name}.csv"
        for _ in range(200):
            if file.exists() and file.stat().st_size:
                break
            browser.run("new Promise(done => setTimeout(done, 20))")
        return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))

    rows = saved("evaluations", "?q=alice&sort=-latency")
    found = [(row["solution"], row["uuid"], float(row["latency_ms"])) for row in rows]
    assert found == [("alice_double", "w2", pytest.approx(35.2)), ("alice_double", "w1", 1.1)]
    shares = [float(row["share_of_limit"]) for row in rows]
    assert shares == pytest.approx([0.128 / 1.1] * 2, rel=1e-3)
    # What a spreadsheet would run is text.
    authors = {row["solution"]: row["author"] for row in saved("solutions")}
    assert authors == {"alice_double": '\'=say("1,2")', "bob_double": "bob"}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_every_view_is_accessible(view, visit, browser, axe, width, scheme):
    browser.prefer(scheme)
    browser.size(width)
    view("leaderboard")
    browser.run(f"{axe}; 1")
    options = json.dumps({"runOnly": {"type": "tag", "values": RULES}})
    found = {}
    for each in VIEWS:
        visit(each)
        browser.run("new Promise(done => setTimeout(done, 100))")  # figures are drawn
        violations = browser.run(
            f"axe.run(document, {options}).then(found => found.violations"
            ".map(one => [one.id, one.nodes[0].html, one.nodes[0].failureSummary]))"
        )
        found.update({each: violations} if violations else {})
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert found == {}

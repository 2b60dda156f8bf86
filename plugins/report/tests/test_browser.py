"""The page in a real browser, where there is one: Debian's ``chromium``."""

import json

import pytest

from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.report import DefinitionCoverage, PageInfo, render_page

INFO = PageInfo("A title", "/data/set", "2026-01-01 00:00 UTC")
WORKLOADS = ["N=1", "N=2", "N=10", "N=100"]
FAILURE_LOG = "Traceback (most recent call last):\n  File 'x'\nValueError: 12 is wrong"


@pytest.fixture
def results(make_result):
    found = [
        make_result(
            name, workload=f"w{n}", axes={"N": n, "M": 7 * n % 11}, latency_ms=latency * n,
            language=language, samples_ms=(latency * n, latency * n * 1.1, latency * n * 1.3),
            interval_ms=(latency * n * 0.9, latency * n * 1.2), speedup_interval=(0.1, 9.0),
            clock=Clock("cpu", "cold", "rse", "beside"),
            timing={"outcome": "standard error 1%", "watched": {"cpu": {"load": [1, 2, 3]}}},
        )
        for name, latency, language in (("b_fast", 0.5, "triton"), ("a_slow", 3.0, "cuda"))
        for n in (1, 2, 10, 100)
    ]  # fmt: skip
    failed = {"status": "RUNTIME_ERROR", "log": FAILURE_LOG, "axes": {"N": 2, "M": 3}}
    return [*found, make_result("c_failed", workload="w2", **failed)]


@pytest.fixture
def page(results):
    gap = DefinitionCoverage("double", "op", 3, 4, 12, {"Test CPU": 9}, (), ("3 missing",))
    return render_page(results, INFO, [gap])


def column(browser, number, table="#view table"):
    """Return the text of the cells of a column."""
    return browser.run(
        f"[...document.querySelectorAll('{table} tbody tr')]"
        f".map(row => row.cells[{number}].innerText.trim())"
    )


def text(browser, selector="#view"):
    return browser.run(f"document.querySelector('{selector}').innerText")


# -------------------------------------------------------------------------------------- views


def test_every_view_shows_something_and_complains_of_nothing(show, page):
    browser = show(page)
    seen = set()
    for link in browser.run("[...document.querySelectorAll('#views a')].map(a => a.dataset.view)"):
        browser.click(f'#views a[data-view="{link}"]')
        browser.wait(f"document.querySelector('a[aria-current]').dataset.view === '{link}'")
        browser.wait("document.querySelectorAll('#view tbody tr').length > 0")
        seen.add(text(browser))
        assert "undefined" not in text(browser)
        assert "NaN" not in text(browser)
    assert len(seen) == 7


def test_a_definition_is_a_click_away_and_back(show, page):
    browser = show(page, "#/definitions")
    browser.click("#view tbody a")
    browser.wait("document.querySelectorAll('#view svg circle.dot').length === 8")
    assert browser.run("document.querySelector('#view svg .cluster text').textContent") == "1"
    assert browser.run("document.activeElement.textContent") == "double"
    assert browser.run("document.title") == "double · A title"
    browser.run("history.back()")
    browser.wait("document.querySelector('#view h2').textContent === 'Definitions'")


# ----------------------------------------------------------------------- the plot over an axis


def test_the_plot_shows_what_is_chosen(show, page):
    browser = show(page, "#/definition/double")
    browser.wait("document.querySelector('figure select')")
    assert browser.run(
        "[...document.querySelectorAll('figure select')].map(s => [...s.options].map(o => o.text))"
    ) == [["latency", "speed-up"], ["N", "M", "each workload"], WORKLOADS]
    seen = set()
    for shown in ("latency", "speedup"):
        for axis in ("N", "M", "(workload)"):
            browser.run(
                f"[...document.querySelectorAll('figure select')].forEach((s, i) => {{"
                f"s.value = ['{shown}', '{axis}'][i]; s.dispatchEvent(new Event('change')); }})"
            )
            assert browser.run("document.querySelectorAll('#view circle.dot').length") == 8
            seen.add(browser.run("document.querySelector('figure svg').outerHTML"))
    assert len(seen) == 6
    assert not any("NaN" in one or "Infinity" in one for one in seen)


# ------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("heading", "clicks", "order", "direction"),
    [
        ("Solution", 1, "a_slow b_fast c_failed", "ascending"),
        ("Latency", 1, "b_fast a_slow c_failed", "ascending"),
        ("Latency", 2, "a_slow b_fast c_failed", "descending"),
        ("Speed-up", 1, "b_fast a_slow c_failed", "descending"),
    ],
)
def test_a_click_sorts_and_empty_cells_stay_last(show, page, heading, clicks, order, direction):
    browser = show(page, "#/solutions")
    headings = browser.run("[...document.querySelectorAll('#view th')].map(h => h.innerText)")
    number = [name.split(" ")[0] for name in headings].index(heading)
    for _ in range(clicks):
        browser.click(f"#view th:nth-child({number + 1}) button")
    names = "[...document.querySelectorAll('#view tbody tr')].map(row => row.cells[1].innerText)"
    assert [name.split()[0] for name in browser.run(names)] == order.split()
    sorted_by = f"document.querySelector('#view th:nth-child({number + 1})').ariaSort"
    assert browser.run(sorted_by) == direction
    # The address keeps the order: whoever opens it sees the same.
    minus = "-" if direction == "descending" else ""
    address = browser.run("location.hash")
    assert address == f"#/solutions?sort={minus}{heading.lower()}"
    show(page, address)
    assert browser.run(sorted_by) == direction


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("fast n=1", "3 of 9 evaluations"),
        ("-passed", "1 of 9 evaluations"),
        ("w100 nothing", "0 of 9 evaluations"),
        ("", "9 evaluations"),
    ],
)
def test_the_filter_keeps_rows_with_all_words(show, page, words, count):
    browser = show(page, "#/evaluations")
    browser.run("document.querySelector('#view input').focus()")
    browser.press(*words)
    assert text(browser, ".count") == count
    rows = browser.run("[...document.querySelectorAll('#view tbody tr')].length")
    assert rows == max(1, int(count.split()[0]))  # one that says that no row fits


# ----------------------------------------------------------------------------------- keyboard


def test_filtering_and_logs_by_keyboard_alone(show, page):
    browser = show(page, "#/failures")
    browser.press("/")
    assert browser.run("document.activeElement.matches('input[type=search]')") is False
    show(page, "#/evaluations")
    browser.press("/")
    assert browser.run("document.activeElement.matches('input[type=search]')")
    browser.press(*"failed")
    assert browser.run("location.hash") == "#/evaluations?q=failed"
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.innerText.trim()") == "runtime error"
    browser.press("Enter")
    browser.wait("location.hash.startsWith('#/evaluation/c_failed/w2?')")
    browser.wait(
        f"document.querySelector('#view pre.log')?.innerText === {json.dumps(FAILURE_LOG)}"
    )
    assert text(browser, "#view pre.reason") == "ValueError: 12 is wrong"
    browser.run("history.back()")
    browser.wait("location.hash === '#/evaluations?q=failed'")
    assert text(browser, ".count") == "1 of 9 evaluations"
    browser.press("/", "Escape")
    assert text(browser, ".count") == "9 evaluations"
    assert browser.run("location.hash") == "#/evaluations"


# ------------------------------------------------------------------------------------ strangers

HOSTILE = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "\u202egnp.exe\u202c",
    "a\0b\x1b[31mred\x07",
    "x" * 20_000,
    "名前/ü___proto__",
    "' onmouseover='window.pwned=1' \"",
    "%E0%A4%A?#/&=",
    "\ud800",
    "{{constructor}}",
]


def test_hostile_names_and_logs_stay_text(show, visit, make_result):
    results = [
        make_result(
            name, definition=name, op_type=name, author=name, language=name, workload=name,
            axes={name: 3 + n}, hardware=name, log=name * 2,
            status=("PASSED", "RUNTIME_ERROR")[n % 2],
        )
        for n, name in enumerate(HOSTILE)
    ]  # fmt: skip
    gaps = [DefinitionCoverage(n, n, 1, 1, 1, {n: 0}, (), (n,)) for n in HOSTILE]
    browser = show(render_page(results, PageInfo(*HOSTILE[:3]), gaps))
    for view in ("leaderboard", "definitions", "solutions", "evaluations", "failures", "coverage"):
        visit(view)
        browser.wait("document.querySelectorAll('#view tbody tr').length > 1")
        stray = "document.querySelectorAll('#view script, #view img, [onmouseover]').length"
        assert browser.run(stray) == 0
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    for view in ("definitions", "solutions", "workloads", "evaluations"):
        visit(view)
        links = browser.run("[...document.querySelectorAll('#view tbody a')].map(a => a.hash)")
        links = sorted({link for link in links if link.startswith(f"#/{view[:-1]}/")})
        assert len(links) == len(HOSTILE)
        for link in links:
            visit(link.removeprefix("#/"))
            browser.wait("document.querySelector('#view .kind') !== null")
            assert browser.run("document.querySelector('#view h2').innerText.length") > 0
            assert "This page has no" not in text(browser)
            assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert "\u202e" not in browser.run("document.body.innerText")
    assert "\0" not in browser.run("document.body.innerText")


def test_no_other_script_runs(browser, page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", "<script>window.pwned = 1</script></body>"))
    browser.open(path)
    assert browser.run("window.pwned") is None
    assert any("Content Security Policy" in problem for problem in browser.problems)


# ------------------------------------------------------------------------- looks and first paint

GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_that_of_the_system_until_it_is_switched(show, browser, page, scheme):
    browser.prefer(scheme)
    show(page)
    browser.run("localStorage.clear()")
    show(page)
    first = browser.run(GROUND)
    other = "Dark theme" if scheme == "light" else "Light theme"
    assert text(browser, "#theme") == other
    browser.click("#theme")
    second = browser.run(GROUND)
    assert first != second
    assert text(browser, "#theme") != other
    browser.click("#theme")
    assert browser.run(GROUND) == first
    browser.run("localStorage.clear()")


VIEWS = "leaderboard definitions solutions workloads evaluations failures coverage"
ONE = "definition/double solution/b_fast workload/double/w1 evaluation/b_fast/w1"


@pytest.mark.parametrize(
    ("width", "view"),
    [(1280, "leaderboard"), *((375, view) for view in f"{VIEWS} {ONE}".split())],
)
def test_nothing_sticks_out(show, browser, page, width, view):
    """On a phone, too: neither the page nor a table scrolls sideways."""
    browser.size(width)
    show(page, f"#/{view}")
    assert browser.run("document.documentElement.scrollWidth") <= width
    sideways = "[...document.querySelectorAll('.scroll')].some(s => s.scrollWidth > s.clientWidth)"
    assert not browser.run(sideways)
    outside = browser.run(
        "[...document.querySelectorAll('svg text')].filter(t => { const s = t.closest('svg')"
        ".getBoundingClientRect(), r = t.getBoundingClientRect();"
        "return r.left < s.left - 1 || r.right > s.right + 1; }).map(t => t.textContent)"
    )
    assert outside == []


def test_the_head_stands_before_the_data_so_that_it_is_painted_first(page):
    for early in ("<h1>", 'class="tiles"', 'id="views"', "<footer>"):
        assert page.index(early) < page.index('id="data"') < page.index('id="logs"')

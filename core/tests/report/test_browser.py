"""The page in a real browser, where there is one: Debian's ``chromium``."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib

import pytest

from flashinfer_bench.report import PageInfo, render_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

INFO = PageInfo("A title", "/data/set", "2026-01-01 00:00 UTC")


@pytest.fixture
def browse(tmp_path):
    """Opens a page without a network and returns its content after its script has run."""

    def run(page, *options, file="page.html"):
        path = tmp_path / file
        path.write_text(page, encoding="utf-8")
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=2000",
            *options,
            path.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
        return done.stdout

    return run


@pytest.fixture
def page(make_result):
    results = [
        make_result(
            name, workload=f"w{n}", axes={"N": n}, latency_ms=latency * n, language=language
        )
        for name, latency, language in (("b_fast", 0.5, "triton"), ("a_slow", 3.0, "cuda"))
        for n in (1, 2, 10)
    ]
    results.append(make_result("c_failed", status="COMPILE_ERROR", log="error: <b>bold</b>"))
    return render_page(results, INFO)


def driven(page, script):
    """Let a script of the test use the page; it leaves what it saw in the title."""
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert without_policy != page
    return without_policy.replace("</body>", f"<script>{script}</script></body>")


def seen(dom):
    return re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1)


def test_the_script_runs(browse, page):
    dom = browse(page, "--dump-dom")
    assert '<span id="shown" class="note">3 rows</span>' in dom
    assert 'id="theme">' in dom  # no longer hidden
    assert dom.count("<svg") == 4


def test_no_other_script_runs(browse, page):
    dom = browse(
        page.replace("</body>", "<script>document.title = 'x'</script></body>"), "--dump-dom"
    )
    assert seen(dom) == "A title"


SOLUTIONS = "[...document.querySelectorAll('#results tbody tr')].map(r => r.cells[1].dataset.v)"


@pytest.mark.parametrize(
    ("column", "clicks", "order"),
    [
        (1, 1, "a_slow b_fast c_failed"),
        (1, 2, "c_failed b_fast a_slow"),
        (6, 1, "b_fast a_slow c_failed"),
        (6, 2, "a_slow b_fast c_failed"),
        (7, 1, "a_slow b_fast c_failed"),
    ],
)
def test_a_click_sorts_and_empty_cells_stay_last(browse, page, column, clicks, order):
    script = f"""
    const head = document.querySelectorAll('#results th')[{column}];
    for (let i = 0; i < {clicks}; i++) head.querySelector('button').click();
    document.title = {SOLUTIONS}.join(' ') + '|' + head.getAttribute('aria-sort');
    """
    wanted = "ascending" if clicks == 1 else "descending"
    assert seen(browse(driven(page, script), "--dump-dom")) == f"{order}|{wanted}"


def test_the_filter_hides_rows(browse, page):
    script = """
    const box = document.getElementById('filter');
    box.value = 'TRITON fast';
    box.dispatchEvent(new Event('input'));
    const rows = [...document.querySelectorAll('#results tbody tr')];
    document.title = rows.filter(r => r.offsetParent !== null).length + '|' +
      document.getElementById('shown').textContent;
    """
    assert seen(browse(driven(page, script), "--dump-dom")) == "1|1 of 3 rows"


def test_values_show_under_the_pointer(browse, page):
    script = """
    const dot = document.querySelector('circle.dot');
    dot.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 10, clientY: 10}));
    const tip = document.getElementById('tip');
    document.title = tip.hidden + '|' + tip.textContent.split('\\n')[0];
    """
    assert seen(browse(driven(page, script), "--dump-dom")).startswith("false|")


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_light_and_dark(browse, page):
    script = f"""
    const button = document.getElementById('theme');
    const colours = [{BACKGROUND}];
    button.click(); colours.push({BACKGROUND});
    button.click(); colours.push({BACKGROUND});
    document.title = colours.join('|');
    """
    first, second, third = seen(browse(driven(page, script), "--dump-dom")).split("|")
    assert first == third != second


@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out(browse, page, width):
    """Wide content scrolls within its frame; the page itself never does."""
    script = "document.title = document.documentElement.scrollWidth - window.innerWidth;"
    dom = browse(driven(page, script), "--dump-dom", f"--window-size={width},900")
    assert int(seen(dom)) <= 0


def test_a_picture_of_it_is_not_blank(browse, page, tmp_path):
    picture = tmp_path / "page.png"
    browse(page, f"--screenshot={picture}", "--window-size=1280,1600")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    pixels = zlib.decompress(b"".join(_chunks(content, b"IDAT")))
    assert len(set(pixels)) > 50


def _chunks(png, kind):
    place = 8
    while place < len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == kind:
            yield png[place + 8 : place + 8 + length]
        place += 12 + length

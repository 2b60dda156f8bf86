"""``fib validate --outputs html`` and ``fib validate-render``."""

import json

import pytest

HOSTILE = "<script>alert(1)<img src=x onerror=alert(2)>"


@pytest.fixture
def report(fib, maker, tmp_path):
    """The reports of a dataset with an error in a file of a hostile name, and a warning."""
    maker.sound()
    maker.solution("lost", definition=HOSTILE)
    maker.raw("traces/turned\u202e\x1b[31m.txt", "")
    folder = tmp_path / "reports"
    options = ("--outputs", "json", "html", "--output-folder", folder)
    result = fib("validate", maker.root, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert sorted(one.name for one in folder.iterdir()) == ["validation.html", "validation.json"]
    return folder / "validation.json"


def test_a_saved_report_shows_what_the_first_did(fib, maker, report, tmp_path):
    first, again = fib("validate", maker.root), fib("validate-render", report)
    assert first.stdout.count("\n") > 2
    assert (again.stdout, again.stderr) == (first.stdout, first.stderr)
    assert again.exit_code == 0
    # It need not lie with its dataset, and is what --json writes.
    other = tmp_path / "piped.json"
    other.write_text(fib("validate", maker.root, "--json").stdout)
    page = tmp_path / "page.html"
    assert fib("validate-render", other, "--output", page).exit_code == 0
    assert page.read_bytes() == report.with_suffix(".html").read_bytes()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page(browser, report, scheme):
    browser.prefer(scheme)
    browser.size(375)
    page = report.with_suffix(".html")
    browser.problems.clear()
    browser.requests.clear()
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait("document.title === 'Validation' && document.readyState === 'complete'")
    text = browser.run("document.body.innerText")
    assert f"no definition '{HOSTILE}' in the dataset" in text
    assert "turned\u27e8202e\u27e9" in text
    assert browser.run("document.querySelectorAll('img, script').length") == 0
    assert browser.run("document.documentElement.scrollWidth") == 375
    shade = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(18, 18, 20)") == (scheme == "dark")
    assert (browser.problems, browser.requests) == ([], [page.as_uri()])


def test_a_page_of_very_many_findings_stays_small(fib, report, tmp_path):
    document = json.loads(report.read_text())
    document["datasets"][0]["findings"] *= 30_000
    large, page = tmp_path / "large.json", tmp_path / "large.html"
    large.write_text(json.dumps(document))
    assert fib("validate-render", large, "-o", page).exit_code == 0
    assert "\u2026 and 28,000 more" in page.read_text()
    assert page.stat().st_size < 2e6


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (lambda text: b"\xff" + text, 1, "not UTF-8"),
        (lambda text: b"[" * 100_000, 1, "not valid"),
        (lambda text: b"[1]", 1, "must be an object"),
        (lambda text: b'{"name": "x"}', 1, "schema_version: this field is missing"),
        (lambda text: text.replace(b'"error"', b'"fatal"'), 1, "datasets.0.findings."),
    ],
)
def test_what_is_no_report(fib, report, tmp_path, damage, code, words):
    broken, page = tmp_path / "broken.json", tmp_path / "page.html"
    broken.write_bytes(damage(report.read_bytes()))
    result = fib("validate-render", broken, "--output", page)
    assert (result.exit_code, result.stdout) == (code, "")
    problem, hint = result.stderr.splitlines()
    assert problem.startswith(f"error: {broken}")
    assert words in problem
    assert hint.startswith("hint: ")
    assert not page.exists()


def test_a_page_is_written_into_folders_that_are_there(fib, report, tmp_path):
    for folder in (report, tmp_path / "nowhere"):
        result = fib("validate-render", report, "--output", folder / "page.html")
        assert result.exit_code == 2
        assert f"no folder {folder}" in result.stderr
        assert not (tmp_path / "nowhere").exists()

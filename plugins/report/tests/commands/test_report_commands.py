"""``fib report``: scores, coverage, regressions and pages."""

import base64
import csv
import io
import json
import os
import re
import sys
import zlib

import pytest

from fib_tests.cli import tables

COMMANDS = [["summary"], ["scores"], ["coverage"], ["regressions", "--since", "2026-01-15"]]


@pytest.fixture
def root(maker):
    """Two solutions on two workloads; one became slower and one broke."""
    maker.sound()
    late = {"axes": {"N": 16}, "timestamp": "2026-02-01T00:00:00"}
    maker.trace("alice_double", uuid="w1", latency_ms=0.8, **late)
    maker.trace("baseline_double", uuid="w1", status="RUNTIME_ERROR", log="boom", **late)
    return maker.root


def table_of(fib, *args):
    result = fib("report", *args, "--format", "csv")
    return result, list(csv.DictReader(io.StringIO(result.stdout.split("\n\n")[0])))


@pytest.fixture
def close_race(maker):
    return maker.close_race().root


def test_scores_of_authors(fib, maker):
    result, (alice, baseline) = table_of(fib, "scores", "--local", maker.sound().root)
    assert result.exit_code == 0
    assert alice["author"] == "alice"
    assert float(alice["score"]) == float(alice["mean"]) == 4.0
    assert (alice["fast_1"], alice["win_2"], alice["fastest"]) == ("1.0", "1.0", "2")
    assert (baseline["score"], baseline["geomean"], baseline["fast_1"]) == ("", "1.0", "0.0")


def test_scores_at_chosen_speedups(fib, maker):
    root = maker.sound().root
    _, (alice, _) = table_of(fib, "scores", "--local", root, "--p", "3", "8", "--by-solution")
    assert alice["solution"] == "alice_double"
    assert [alice[name] for name in ("fast_3", "fast_8", "win_3", "win_8")] == [
        "1.0", "0.0", "1.0", "0.0",
    ]  # fmt: skip
    assert "fast_1" not in alice


def test_coverage(fib, maker):
    maker.sound()
    maker.definition("triple")
    result, rows = table_of(fib, "coverage", "--local", maker.root)
    assert result.exit_code == 0
    assert [(row["definition"], row["Test CPU"], row["lacking"]) for row in rows] == [
        ("double", "4", ""),
        ("triple", "0", "no workloads; no solutions"),
    ]


def test_regressions_are_findings(fib, root):
    result, rows = table_of(fib, "regressions", "--local", root, "--since", "2026-01-15")
    assert result.exit_code == 1
    assert [(row["change"], row["solution"], row["after_status"]) for row in rows] == [
        ("broken", "baseline_double", "RUNTIME_ERROR"),
        ("slower", "alice_double", "PASSED"),
    ]
    assert float(rows[1]["ratio"]) == pytest.approx(1.6)


def test_no_regression_before_or_under_the_threshold(fib, root):
    def run(*args):
        return fib("report", "regressions", "--local", root, *args)

    before = run("--since", "2026-01-15", "--until", "2026-01-20")
    assert (before.exit_code, len(before.stdout.splitlines())) == (0, 1)
    alice = ["--since", "2026-01-15", "--author", "alice"]
    assert run(*alice, "--threshold", "2").exit_code == 0
    assert run(*alice).exit_code == 1


@pytest.mark.parametrize(
    "args",
    [[], ["--since", "soon"], ["--since", "2026-02-01", "--until", "2026-01-01"],
     ["--since", "1d", "--threshold", "1"]],
)  # fmt: skip
def test_regressions_refuse_nonsense(fib, root, args):
    assert fib("report", "regressions", "--local", root, *args).exit_code == 2


def carried(page):
    """Return the data of a page as text."""
    packed = re.search(r'id="data">([^<]*)<', page)[1]
    return zlib.decompress(base64.b64decode(packed)).decode()


def test_visualize(fib, maker, tmp_path):
    page = tmp_path / "page.html"
    options = ["--output", page, "--title", "<T>", "--author", "alice"]
    result = fib("report", "visualize", "--local", maker.sound().root, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{page}\n"
    assert "2 evaluations" in result.stderr
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>&lt;T&gt;</title>" in text
    assert "alice_double" in carried(text)
    assert "baseline_double" not in carried(text)
    assert 'data-view="coverage"' not in text  # that of one author says nothing of gaps
    fib("report", "visualize", "--local", maker.root, "-o", page)
    assert 'data-view="coverage"' in page.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_full_disk(fib_process, maker, tmp_path):
    import resource

    page = tmp_path / "page.html"
    page.write_text("the page before")
    done = fib_process(
        "report", "visualize", "--local", maker.sound().root, "--output", page,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )  # fmt: skip
    assert done.returncode == 4
    assert "error: " in done.stderr
    assert page.read_text() == "the page before"
    assert os.listdir(tmp_path).count("page.html") == 1  # noqa: PTH208


def test_neither_reports_nor_explanations_need_torch(fib_process, maker, tmp_path):
    (tmp_path / "block").mkdir()
    for name in ("torch", "numpy"):
        (tmp_path / f"block/{name}.py").write_text("raise ImportError('blocked by the test')")
    env = {"PYTHONPATH": str(tmp_path / "block")}
    root = maker.sound().root
    page = ["visualize", "--output", tmp_path / "page.html"]
    for args in (["validate"], *(["report", *each] for each in (page, ["best"], *COMMANDS))):
        done = fib_process(*args, "--local", root, env=env)
        assert done.returncode in (0, 1), done.stderr
    for args in (["list", root], ["explain", root, "double"]):
        done = fib_process("apply", *args, "--hardware", "Test CPU", env=env)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["baseline_double", "baseline"])
def test_against_a_named_baseline(fib, close_race, name):
    result, rows = table_of(fib, "scores", "--baseline", name, "--local", close_race)
    assert result.exit_code == 0
    assert float(rows[0]["geomean"]) == pytest.approx(4.0)
    assert [one["rank"] for one in rows] == ["1", "1", "3"]
    assert f"speed-ups are over {name}, unpaired" in result.stderr


# ------------------------------------------------------------------------------------ summary


def test_summary(fib, maker):
    result = fib("report", "summary", "--local", maker.sound().root)
    assert result.exit_code == 0
    definitions, ranking, timings = tables(result.stdout)
    assert [one["runs"] for one in timings] == ["4"]
    names = "definition op_type solutions workloads traces passed failed"
    assert definitions == [
        dict(zip(names.split(), ["double", "op", "2", "2", "4", "4", "0"], strict=True))
    ]
    names = "hardware timer cache author speedup definitions workloads"
    values = ("Test CPU", "", "", "alice", "4", "1", "2")
    assert ranking == [dict(zip(names.split(), values, strict=True))]
    assert "total: 1 definitions, 2 solutions, 2 workloads, 4 traces" in result.stderr
    other = fib("report", "summary", "--local", maker.root, "--baseline-author", "alice")
    assert tables(other.stdout)[1][0]["speedup"] == "0.25"
    document = json.loads(fib("report", "summary", "--json", "--local", maker.root).stdout)
    assert (document["schema_version"], document["unreadable"]) == (1, [])
    assert (document["totals"]["traces"], document["statuses"]) == (4, {"PASSED": 4})


def test_no_author_baseline_is_no_error(fib, maker):
    maker.definition()
    maker.solution()
    maker.workload()
    maker.trace()
    result = fib("report", "summary", "--local", maker.root)
    assert result.exit_code == 0
    assert [len(table) for table in tables(result.stdout)] == [1, 1]  # definitions, timings
    assert "definitions not in the ranking: 1;" in result.stderr
    assert "--baseline-author" in result.stderr


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--definitions", "triple", "double"], ["double", "triple"]),
        (["--op-type", "gemm"], ["triple"]),
        (["--definitions", "triple", "--op-type", "op"], None),
    ],
)
def test_filters(fib, two_definitions, filters, names):
    result = fib("report", "summary", "--local", two_definitions.root, *filters)
    if names is None:
        assert result.exit_code == 5
        assert result.stdout == ""
    else:
        assert [one["definition"] for one in tables(result.stdout)[0]] == names


@pytest.mark.parametrize("name", ["baseline_double", "baseline"])
def test_the_best_against_a_named_baseline(fib, close_race, name):
    options = ["--baseline", name, "--local", close_race, "--author", "alice"]
    result, (row,) = table_of(fib, "best", *options)
    assert result.exit_code == 0
    assert float(row["vs_baseline"]) == pytest.approx(4.0)
    assert float(row["vs_baseline_low"]) < 4.0 < float(row["vs_baseline_high"])
    assert row["solutions"] == "1"
    assert "unpaired" in result.stderr

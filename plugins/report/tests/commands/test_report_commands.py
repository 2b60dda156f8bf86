"""``fib report``: rankings, scores, coverage, regressions and pages."""

import csv
import io
import json
import os
import sys

import pytest

import flashinfer_bench.data
from fib_tests.cli import tables
from fib_tests.dataset_maker import CLOSE_RACE_ORIGIN

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


def test_scores_of_authors_at_chosen_speedups(fib, maker):
    root = maker.sound().root
    result, (alice, baseline) = table_of(fib, "scores", "--local", root)
    assert result.exit_code == 0
    assert (alice["author"], alice["score"], alice["mean"]) == ("alice", "4.0", "4.0")
    assert (alice["fast_1"], alice["win_2"], alice["fastest"]) == ("1.0", "1.0", "2")
    assert (baseline["score"], baseline["geomean"], baseline["fast_1"]) == ("", "1.0", "0.0")
    _, (alice, _) = table_of(fib, "scores", "--local", root, "--p", "3", "8", "--by-solution")
    assert (alice["solution"], alice["fast_3"], alice["fast_8"]) == ("alice_double", "1.0", "0.0")
    assert (alice["win_3"], alice["win_8"]) == ("1.0", "0.0")
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
    options = ["regressions", "--local", root, "--since", "2026-01-15"]
    result, rows = table_of(fib, *options)
    assert result.exit_code == 1
    assert [(row["change"], row["solution"], row["after_status"]) for row in rows] == [
        ("broken", "baseline_double", "RUNTIME_ERROR"),
        ("slower", "alice_double", "PASSED"),
    ]
    assert float(rows[1]["ratio"]) == pytest.approx(1.6)
    result, rows = table_of(fib, *options, "--until", "2026-01-20")
    assert (result.exit_code, rows) == (0, [])
    assert table_of(fib, *options, "--author", "alice", "--threshold", "2")[0].exit_code == 0


@pytest.mark.parametrize(
    "args",
    [[], ["--since", "soon"], ["--since", "2026-02-01", "--until", "2026-01-01"],
     ["--since", "1d", "--threshold", "1"]],
)  # fmt: skip
def test_regressions_refuse_nonsense(fib, root, args):
    assert fib("report", "regressions", "--local", root, *args).exit_code == 2


def test_visualize(fib, maker, tmp_path, unpack):
    page = tmp_path / "page.html"
    options = ["--output", page, "--title", "<T>", "--author", "alice"]
    result = fib("report", "visualize", "--local", maker.sound().root, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{page}\n"
    assert "2 evaluations" in result.stderr
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>&lt;T&gt;</title>" in text
    assert [name for _, name, *_ in unpack(text, "data")["solutions"]] == ["alice_double"]
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
    options = ["--baseline", name, "--local", close_race]
    result, rows = table_of(fib, "scores", *options)
    assert result.exit_code == 0
    assert float(rows[0]["geomean"]) == pytest.approx(4.0)
    assert [one["rank"] for one in rows] == ["1", "1", "3"]
    assert f"speed-ups are over {name}, unpaired" in result.stderr
    result, (row,) = table_of(fib, "best", *options, "--author", "alice")
    assert result.exit_code == 0
    assert float(row["vs_baseline"]) == pytest.approx(4.0)
    assert float(row["vs_baseline_low"]) < 4.0 < float(row["vs_baseline_high"])
    assert row["solutions"] == "1"
    assert "unpaired" in result.stderr


# ------------------------------------------------------------------------------------ summary


def test_summary(fib, maker):
    result = fib("report", "summary", "--local", maker.sound().root)
    assert result.exit_code == 0
    (definition,), (ranked,), (timing,) = tables(result.stdout)
    assert list(definition.values()) == ["double", "op", "2", "2", "4", "4", "0"]
    assert list(definition)[2:] == ["solutions", "workloads", "traces", "passed", "failed"]
    assert list(ranked.values()) == ["Test CPU", "", "", "alice", "4", "1", "2"]
    assert list(ranked)[4:] == ["speedup", "definitions", "workloads"]
    assert timing["runs"] == "4"
    assert "total: 1 definitions, 2 solutions, 2 workloads, 4 traces" in result.stderr
    other = fib("report", "summary", "--local", maker.root, "--baseline-author", "alice")
    assert tables(other.stdout)[1][0]["speedup"] == "0.25"
    document = json.loads(fib("report", "summary", "--json", "--local", maker.root).stdout)
    assert (document["schema_version"], document["unreadable"]) == (1, [])
    assert (document["totals"]["traces"], document["statuses"]) == (4, {"PASSED": 4})


def test_no_author_baseline_is_no_error(fib, maker):
    result = fib("report", "summary", "--local", maker.sound().root, "--baseline-author", "bob")
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


# --------------------------------------------------------------------------------------- best


def test_best_tells_what_it_cannot_tell_apart(fib, close_race):
    result, (row,) = table_of(fib, "best", "--local", close_race)
    assert (row["solution"], row["rank"], row["tied"]) == ("alice_double", "1", "yes")
    assert (float(row["geomean_ms_low"]), float(row["geomean_ms_high"])) == pytest.approx(
        (0.9, 1.1)
    )
    assert (row["speedup_low"], row["lead_low"]) != ("", "")
    assert (row["timer"], row["cache"], row["stop_rule"]) == ("cupti", "cold", "rse")
    assert row["samples"] == "8"
    assert row["notes"] == "not distinguishable from bob_double"
    assert "1 of 1 rankings have no clear winner" in result.stderr


def test_the_ranking_of_a_definition(fib, close_race):
    _, rows = table_of(fib, "best", "--top", "9", "--local", close_race)
    assert [(one["rank"], one["tied"]) for one in rows] == [("1", "yes"), ("1", "yes"), ("3", "no")]
    shown = fib(
        "report", "best", "--top", "9", "--local", close_race, "--format", "markdown"
    ).stdout
    ranks = [line.split("|")[3].strip() for line in shown.splitlines()[4:]]
    assert ranks == ["=1", "=1", "3"]
    assert "1 ±10%" in shown
    assert "cupti cold rse, 8 samples" in shown


def test_json_has_every_workload(fib, close_race):
    document = json.loads(fib("report", "best", "--json", "--local", close_race).stdout)
    (best,) = document["best"]
    assert best["not_distinguishable"] == ["bob_double"]
    (one,) = best["results"]
    assert (one["latency_ms_low"], one["latency_ms_high"]) == (0.9, 1.1)
    assert (one["samples"], one["stop_rule"], one["reference"]) == (8, "rse", "beside")


def test_what_is_disputed_is_named_and_not_ranked(fib, close_race):
    (path,) = (close_race / "traces").rglob("*.jsonl")
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    for trace in traces:
        if trace["solution"] == "alice_double":
            extra = {"integrity": {"disputed": "hidden time", "unseen_ms": 0.2}}
            trace["evaluation"]["correctness"]["extra"] = extra
    path.write_text("".join(f"{json.dumps(trace)}\n" for trace in traces))
    result = fib("report", "best", "--json", "--local", close_race)
    document = json.loads(result.stdout)
    assert [one["solution"] for one in document["best"]] == ["bob_double"]
    assert document["disputed"] == ["alice_double"]
    assert "measures them again): alice_double" in result.stderr


def test_timers_are_ranked_apart_and_that_is_said(fib, close_race, maker):
    warm = {**CLOSE_RACE_ORIGIN, "timing": {"cache": "warm", "reference": "beside"}}
    maker.trace("bob_double", latency_ms=0.1, interval_ms=[0.09, 0.11], provenance=warm)
    result, rows = table_of(fib, "best", "--local", close_race)
    assert [(one["cache"], one["solution"]) for one in rows] == [
        ("cold", "alice_double"),
        ("warm", "bob_double"),
    ]
    assert "ranked separately: cupti, cold; cupti, warm" in result.stderr


def test_best(fib, two_definitions):
    two = two_definitions
    two.trace("bob_triple", definition="triple", hardware="NVIDIA H200", latency_ms=4.0)
    result = fib("report", "best", "--local", two.root)
    assert result.exit_code == 0
    (found,) = tables(result.stdout)
    assert [(one["definition"], one["hardware"], one["solution"]) for one in found] == [
        ("double", "Test CPU", "alice_double"),
        ("triple", "NVIDIA H200", "bob_triple"),
    ]
    assert found[0]["geomean_ms"] == "0.5"
    assert found[0]["lead"] == "4"
    assert found[1]["lead"] == ""
    result = fib("report", "best", "--local", two.root, "--author", "baseline", "--json")
    (best,) = json.loads(result.stdout)["best"]
    assert (best["solution"], best["runner_up"]) == ("baseline_double", None)


def test_several_datasets_need_what_merges_them(fib, maker, monkeypatch):
    monkeypatch.delitem(vars(flashinfer_bench.data), "merge_trace_sets", raising=False)
    monkeypatch.setitem(sys.modules, "fib_datasets.transfer.merge", None)
    result = fib("report", "best", "--local", maker.sound().root, maker.root)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "dist fib-datasets" in result.stderr

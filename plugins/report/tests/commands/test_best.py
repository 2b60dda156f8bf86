"""Intervals, ranks and baselines on the command line."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

import flashinfer_bench.data
from fib_tests.cli import tables
from fib_tests.dataset_maker import CLOSE_RACE_ORIGIN


@pytest.fixture
def root(maker):
    return maker.close_race().root


def table(fib, *args):
    result = fib("report", *args, "--format", "csv")
    assert result.exit_code == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout.split("\n\n")[0]))), result.stderr


def test_best_tells_what_it_cannot_tell_apart(fib, root):
    (row,), talk = table(fib, "best", "--local", root)
    assert (row["solution"], row["rank"], row["tied"]) == ("alice_double", "1", "yes")
    assert (float(row["geomean_ms_low"]), float(row["geomean_ms_high"])) == pytest.approx(
        (0.9, 1.1)
    )
    assert (row["speedup_low"], row["lead_low"]) != ("", "")
    assert (row["timer"], row["cache"], row["stop_rule"]) == ("cupti", "cold", "rse")
    assert row["samples"] == "8"
    assert row["notes"] == "not distinguishable from bob_double"
    assert "1 of 1 rankings have no clear winner" in talk


def test_the_ranking_of_a_definition(fib, root):
    rows, _ = table(fib, "best", "--top", "9", "--local", root)
    assert [(one["rank"], one["tied"]) for one in rows] == [("1", "yes"), ("1", "yes"), ("3", "no")]
    shown = fib("report", "best", "--top", "9", "--local", root, "--format", "markdown").stdout
    ranks = [line.split("|")[3].strip() for line in shown.splitlines()[4:]]
    assert ranks == ["=1", "=1", "3"]
    assert "1 ±10%" in shown
    assert "cupti cold rse, 8 samples" in shown


def test_json_has_every_workload(fib, root):
    document = json.loads(fib("report", "best", "--json", "--local", root).stdout)
    (best,) = document["best"]
    assert best["not_distinguishable"] == ["bob_double"]
    (one,) = best["results"]
    assert (one["latency_ms_low"], one["latency_ms_high"]) == (0.9, 1.1)
    assert (one["samples"], one["stop_rule"], one["reference"]) == (8, "rse", "beside")


def test_what_is_disputed_is_named_and_not_ranked(fib, root):
    (path,) = Path(root, "traces").rglob("*.jsonl")
    traces = [json.loads(line) for line in path.read_text().splitlines()]
    for trace in traces:
        if trace["solution"] == "alice_double":
            extra = {"integrity": {"disputed": "hidden time", "unseen_ms": 0.2}}
            trace["evaluation"]["correctness"]["extra"] = extra
    path.write_text("".join(f"{json.dumps(trace)}\n" for trace in traces))
    result = fib("report", "best", "--json", "--local", root)
    document = json.loads(result.stdout)
    assert [one["solution"] for one in document["best"]] == ["bob_double"]
    assert document["disputed"] == ["alice_double"]
    assert "measures them again): alice_double" in result.stderr


def test_timers_are_ranked_apart_and_that_is_said(fib, root, maker):
    warm = {**CLOSE_RACE_ORIGIN, "timing": {"cache": "warm", "reference": "beside"}}
    maker.trace("bob_double", latency_ms=0.1, interval_ms=[0.09, 0.11], provenance=warm)
    rows, talk = table(fib, "best", "--local", root)
    assert [(one["cache"], one["solution"]) for one in rows] == [
        ("cold", "alice_double"),
        ("warm", "bob_double"),
    ]
    assert "ranked separately: cupti, cold; cupti, warm" in talk


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

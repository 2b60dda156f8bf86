"""``fib report``."""

from __future__ import annotations

import json
import sys

import pytest

import flashinfer_bench.data
from flashinfer_bench.data import trace_set


def rows(text):
    """Read tab-separated values into dictionaries, one list for each table."""
    tables = []
    for block in text.strip("\n").split("\n\n"):
        header, *lines = (line.split("\t") for line in block.split("\n"))
        tables.append([dict(zip(header, line, strict=True)) for line in lines])
    return tables


@pytest.fixture
def two(maker):
    """A dataset with another definition and results from another device."""
    other = maker.sound()
    other.definition("triple", op_type="gemm")
    other.solution("bob_triple", definition="triple", author="bob")
    other.workload("triple", uuid="w1", op_type="gemm")
    other.trace("bob_triple", definition="triple", hardware="NVIDIA H200", latency_ms=4.0)
    return other


# ------------------------------------------------------------------------------------ summary


def test_summary(fib, maker):
    result = fib("report", "summary", "--local", maker.sound().root)
    assert result.exit_code == 0
    definitions, ranking, timings = rows(result.stdout)
    assert [one["runs"] for one in timings] == ["4"]
    assert definitions == [
        {
            "definition": "double",
            "op_type": "op",
            "solutions": "2",
            "workloads": "2",
            "traces": "4",
            "passed": "4",
            "failed": "0",
        }
    ]
    assert ranking == [
        {
            "hardware": "Test CPU",
            "timer": "",
            "cache": "",
            "author": "alice",
            "speedup": "4",
            "definitions": "1",
            "workloads": "2",
        }
    ]
    assert "total: 1 definitions, 2 solutions, 2 workloads, 4 traces" in result.stderr
    other = fib("report", "summary", "--local", maker.root, "--baseline-author", "alice")
    assert rows(other.stdout)[1][0]["speedup"] == "0.25"
    document = json.loads(fib("report", "summary", "--json", "--local", maker.root).stdout)
    assert (document["schema_version"], document["totals"]["traces"]) == (1, 4)
    assert document["statuses"] == {"PASSED": 4}
    assert document["definitions"][0]["definition"] == "double"
    assert document["rankings"][0]["author"] == "alice"
    assert document["unreadable"] == []


def test_no_author_baseline_is_no_error(fib, maker):
    maker.definition()
    maker.solution()
    maker.workload()
    maker.trace()
    result = fib("report", "summary", "--local", maker.root)
    assert result.exit_code == 0
    assert [len(table) for table in rows(result.stdout)] == [1, 1]  # definitions, timings
    assert "not in the ranking: 1 definitions" in result.stderr
    assert "--baseline-author" in result.stderr


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--definitions", "triple", "double"], ["double", "triple"]),
        (["--op-type", "gemm"], ["triple"]),
        (["--definitions", "triple", "--op-type", "op"], None),
    ],
)
def test_filters(fib, two, filters, names):
    result = fib("report", "summary", "--local", two.root, *filters)
    if names is None:
        assert result.exit_code == 5
        assert result.stdout == ""
    else:
        assert [one["definition"] for one in rows(result.stdout)[0]] == names


def test_several_datasets_need_what_merges_them(fib, maker, monkeypatch):
    monkeypatch.delitem(vars(flashinfer_bench.data), "merge_trace_sets", raising=False)
    monkeypatch.setitem(sys.modules, "fib_datasets.transfer.merge", None)
    result = fib("report", "summary", "--local", maker.sound().root, maker.root)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "pip install fib-datasets" in result.stderr


# --------------------------------------------------------------------------------------- best


def test_best(fib, two):
    result = fib("report", "best", "--local", two.root)
    assert result.exit_code == 0
    (found,) = rows(result.stdout)
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


@pytest.mark.parametrize("command", ["summary", "best"])
def test_reports_are_made_from_the_index(fib, maker, monkeypatch, command):
    """They read no trace: a dataset may have a hundred thousand."""
    args = ("report", command, "--local", maker.sound().root, "--json")
    expected = fib(*args)
    monkeypatch.setattr(trace_set, "load_traces", lambda *_: pytest.fail("the traces were read"))
    found = fib(*args)
    assert (found.exit_code, found.stdout) == (0, expected.stdout)


def test_reports_need_no_torch(fib_process, maker, tmp_path):
    (tmp_path / "block").mkdir()
    for name in ("torch", "numpy"):
        (tmp_path / f"block/{name}.py").write_text("raise ImportError('blocked by the test')")
    env = {"PYTHONPATH": str(tmp_path / "block")}
    root = maker.sound().root
    for args in (
        ["summary"],
        ["best", "--json"],
    ):
        done = fib_process("report", *args, "--local", root, env=env)
        assert done.returncode == 0, done.stderr
    assert fib_process("validate", "--local", root, env=env).returncode == 0

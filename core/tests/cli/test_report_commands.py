"""``fib report``."""

from __future__ import annotations

import json
import sys

import pytest

import flashinfer_bench.data
from fib_tests.cli import tables
from flashinfer_bench.data import trace_set


@pytest.fixture
def two(maker):
    """A dataset with another definition and results from another device."""
    other = maker.sound()
    other.definition("triple", op_type="gemm")
    other.solution("bob_triple", definition="triple", author="bob")
    other.workload("triple", uuid="w1", op_type="gemm")
    other.trace("bob_triple", definition="triple", hardware="NVIDIA H200", latency_ms=4.0)
    return other


def test_several_datasets_need_what_merges_them(fib, maker, monkeypatch):
    monkeypatch.delitem(vars(flashinfer_bench.data), "merge_trace_sets", raising=False)
    monkeypatch.setitem(sys.modules, "fib_datasets.transfer.merge", None)
    result = fib("report", "best", "--local", maker.sound().root, maker.root)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "dist fib-datasets" in result.stderr


# --------------------------------------------------------------------------------------- best


def test_best(fib, two):
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


def test_reports_are_made_from_the_index(fib, maker, monkeypatch):
    """They read no trace: a dataset may have a hundred thousand."""
    args = ("report", "best", "--local", maker.sound().root, "--json")
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
    done = fib_process("report", "best", "--json", "--local", root, env=env)
    assert done.returncode == 0, done.stderr
    assert fib_process("validate", "--local", root, env=env).returncode == 0

"""Odd files, names, numbers and folders in a dataset: each costs itself, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fib_tests import table_dataset as make
from flashinfer_bench.apply.explain import explain, explain_all
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import TraceSet

pytestmark = pytest.mark.usefixtures("own_cache")


HERE, key = make.HERE, make.key


@pytest.fixture
def folder(tmp_path):
    return make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])


def load(folder):
    return ApplyTable.load_or_build(folder.root, hardware=HERE)


def check(folder, *, in_memory=True):
    """Check that the table is there, also from memory; return it, and explain it."""
    table = load(folder)
    assert table.match_solution("scale", key()) == "fast"
    explain_all(folder.root, hardware=HERE)
    json.dumps(explain(folder.root, "scale", hardware=HERE))
    if in_memory:
        whole = TraceSet.from_path(folder.root, on_error="collect")
        assert ApplyTable.load_or_build(whole, hardware=HERE).definitions == table.definitions
    return table


def add(folder, record, *changes):
    text = json.dumps(record)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.put("traces/more.jsonl", text + "\n")


class TestNumbers:
    @pytest.mark.parametrize("size", [2**31, 2**63, 2**64, 10**30, 10**400])
    def test_sizes_beyond_any_tensor(self, folder, size):
        add(folder, make.trace(on=make.workload(rows=size, uuid="big")))
        assert check(folder).match_solution("scale", key(rows=size)) == "fast"

    @pytest.mark.parametrize("value", ["1" + "0" * 400, "1e999", "NaN", "Infinity", '"NaN"'])
    def test_latencies_that_are_none(self, folder, value):
        add(folder, make.trace("slow", 0.777), ("0.777", value))
        assert len(check(folder).problems) == 1

    @pytest.mark.parametrize("name", ["hidden_ms", "allowed_ms", "floor_ms"])
    @pytest.mark.parametrize("value", [10**400, -(10**400), "x", None, [1]])
    def test_figures_of_a_judge(self, folder, name, value):
        note = {"hidden_ms": 0.1, "allowed_ms": 0.2, "floor_ms": 0.0, name: value}
        extra = {"integrity": note}
        add(folder, make.trace("slow", 0.5, correctness=make.errors(0, 0, extra=extra)))
        load(folder)
        explain(folder.root, "scale", hardware=HERE)

    def test_too_many_levels(self, folder):
        errors = make.errors(0, 0, extra={"integrity": 777})
        deep = "[" * 100_000 + "]" * 100_000
        add(folder, make.trace("slow", 0.5, correctness=errors), ("777", deep))
        assert len(check(folder).problems) == 1


class TestNames:
    def path(self, folder, name):
        return Path(os.fsdecode(os.fsencode(folder.root) + name))

    def test_of_files_that_are_no_text(self, folder):
        traces = json.dumps(make.trace(on=make.workload(rows=3))) + "\n"
        self.path(folder, b"/traces/\xff\xfe.jsonl").write_text(traces)
        assert check(folder).match_solution("scale", key(rows=3)) == "fast"

    def test_of_solutions_that_are_no_text(self, folder):
        self.path(folder, b"/solutions/\xff.json").write_text(json.dumps(make.solution("other")))
        add(folder, make.trace("other", 0.5, on=make.workload(rows=3)))
        table = check(folder)
        assert table.match_solution("scale", key(rows=3)) == "other"
        assert table.source.solution("other").name == "other"

    @pytest.mark.parametrize("name", ["x\ud800y", "x\0y", "x\ny", "\u202e", "x" * 10_000])
    def test_of_solutions(self, folder, name):
        folder.solution(make.solution(name), name="other")
        add(folder, make.trace(name, 3.0))
        check(folder)


class TestFolders:
    def test_a_link_to_nowhere_is_not_there(self, folder):
        (folder.root / "traces" / "x.jsonl").symlink_to("/nonexistent")
        assert check(folder).problems == []


class TestContents:
    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"\xff\xfe",
            b"[]",
            b"null",
            b'{"definition": "scale", "workload": {}, "solution": "fast", "evaluation": {}}',
            b'{"name": "\xff"}',
            json.dumps(make.trace("slow", 0.1)).encode("utf-16"),
        ],
    )
    @pytest.mark.parametrize("name", ["traces/x.jsonl", "solutions/x.json", "definitions/x.json"])
    def test_of_files(self, folder, name, text):
        folder.put(name, text)
        check(folder)

"""Odd files, names, numbers and folders in a dataset: each costs itself, and nothing else."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.apply import snapshot
from flashinfer_bench.apply.explain import explain, explain_all
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import TraceSet

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

HERE, key = make.HERE, make.key


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and files that count as old at once."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(snapshot, "_YOUNG_NS", -(10**15))
    return tmp_path / "cache" / "apply"


@pytest.fixture
def folder(tmp_path):
    return make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])


def load(folder):
    return ApplyTable.load_or_build(folder.root, hardware=HERE)


def check(folder, *, in_memory=True):
    """Check that the table is there, again and from memory; return it, and explain it."""
    table = load(folder)
    assert table.match_solution("scale", key()) == "fast"
    assert load(folder).definitions == table.definitions
    explain_all(folder.root, hardware=HERE)
    json.dumps(explain(folder.root, "scale", hardware=HERE).to_dict())
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

    def test_a_number_that_python_does_not_read(self, folder):
        add(folder, make.trace(on=make.workload(rows=777)), ("777", "1" * 5000))
        assert len(check(folder).problems) == 1

    @pytest.mark.parametrize("value", ["1" + "0" * 400, "1e999", "NaN", "Infinity", '"NaN"'])
    def test_latencies_that_are_none(self, folder, value):
        add(folder, make.trace("slow", 0.777), ("0.777", value))
        assert len(check(folder).problems) == 1

    @pytest.mark.parametrize("value", ["-0.0", "1e-320", "0"])
    def test_latencies_next_to_nothing(self, folder, value):
        add(folder, make.trace("slow", 0.777, on=make.workload(rows=5)), ("0.777", value))
        check(folder)

    @pytest.mark.parametrize("name", ["hidden_ms", "allowed_ms", "floor_ms"])
    @pytest.mark.parametrize("value", [10**400, -(10**400), "x", None, [1]])
    def test_figures_of_a_judge(self, folder, name, value):
        note = {"hidden_ms": 0.1, "allowed_ms": 0.2, "floor_ms": 0.0, name: value}
        extra = {"integrity": note}
        add(folder, make.trace("slow", 0.5, correctness=make.errors(0, 0, extra=extra)))
        load(folder)
        explain(folder.root, "scale", hardware=HERE)

    def test_a_floor_beyond_all_numbers_is_a_floor(self, folder):
        extra = {"integrity": {"floor_ms": 10**400}}
        add(folder, make.trace("slow", 0.5, correctness=make.errors(0, 0, extra=extra)))
        check(folder)

    def test_notes_in_many_levels(self, folder):
        errors = make.errors(0, 0, extra={"integrity": 777})
        add(folder, make.trace("slow", 0.5, correctness=errors), ("777", "[" * 900 + "]" * 900))
        check(folder)

    def test_too_many_levels(self, folder):
        errors = make.errors(0, 0, extra={"integrity": 777})
        deep = "[" * 100_000 + "]" * 100_000
        add(folder, make.trace("slow", 0.5, correctness=errors), ("777", deep))
        assert len(check(folder).problems) == 1


class TestNames:
    def path(self, folder, name):
        return Path(os.fsdecode(os.fsencode(folder.root) + name))

    def test_of_files_that_are_no_text(self, folder, cache):
        traces = json.dumps(make.trace(on=make.workload(rows=3))) + "\n"
        self.path(folder, b"/traces/\xff\xfe.jsonl").write_text(traces)
        assert check(folder).match_solution("scale", key(rows=3)) == "fast"
        assert list(cache.glob("*.table"))

    def test_of_solutions_that_are_no_text(self, folder):
        self.path(folder, b"/solutions/\xff.json").write_text(json.dumps(make.solution("other")))
        add(folder, make.trace("other", 0.5, on=make.workload(rows=3)))
        table = check(folder)
        assert table.match_solution("scale", key(rows=3)) == "other"
        assert table.source.solution("other").name == "other"

    def test_of_broken_files_that_are_no_text(self, folder):
        self.path(folder, b"/solutions/\xff.json").write_text("{")
        assert len(check(folder).problems) == 1

    @pytest.mark.parametrize("name", ["x\ud800y", "x\0y", "x\ny", "\u202e", "x" * 10_000])
    def test_of_solutions(self, folder, name):
        folder.solution(make.solution(name), name="other")
        add(folder, make.trace(name, 3.0))
        check(folder)


class TestFolders:
    def test_a_link_to_itself_is_not_there(self, folder):
        (folder.root / "traces" / "me.jsonl").symlink_to("me.jsonl")
        assert check(folder, in_memory=False).problems == []

    def test_a_link_to_nowhere_is_not_there(self, folder):
        (folder.root / "traces" / "x.jsonl").symlink_to("/nonexistent")
        assert check(folder).problems == []

    def test_a_link_out_of_the_dataset_is_followed(self, folder, tmp_path):
        (tmp_path / "x").write_text(json.dumps(make.trace(on=make.workload(rows=3))) + "\n")
        (folder.root / "traces" / "x.jsonl").symlink_to(tmp_path / "x")
        assert check(folder).match_solution("scale", key(rows=3)) == "fast"

    def test_more_levels_than_python_has(self, folder):
        path = folder.put("traces/" + "d/" * 150 + "x.jsonl", "")
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack()) + 100)
        try:
            found = [name for name, _ in snapshot._walk(str(folder.root / "traces"), (".jsonl",))]
        finally:
            sys.setrecursionlimit(before)
        assert str(path) in found

    @pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
    def test_what_is_no_file(self, folder, kind):
        path = folder.root / "traces" / "x.jsonl"
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero")
        check(folder)

    @pytest.mark.parametrize("gone", ["traces/more.jsonl", "traces/later"])
    def test_what_goes_while_it_is_looked_for_is_not_there(self, folder, monkeypatch, gone):
        add(folder, make.trace(on=make.workload(rows=3)))
        folder.put("traces/later/x.jsonl", "")
        real = os.stat

        def stat(path, *args, **kwargs):
            if os.fspath(path) == str(folder.root / gone):
                raise FileNotFoundError(2, "gone")
            return real(path, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(snapshot.os, "stat", stat)
            table = load(folder)
        assert table.problems == []
        assert table.match_solution("scale", key(rows=3)) == (None if "more" in gone else "fast")


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

    def test_records_without_a_newline_between_them(self, folder):
        text = json.dumps(make.trace("slow", 0.1))
        folder.put("traces/x.jsonl", text + text + "\n")
        assert len(check(folder).problems) == 1

    def test_two_of_one_name(self, folder):
        folder.solution(make.solution("fast", language="triton"), name="zz")
        table = check(folder)
        assert table.source.solution("fast").spec.language == "python"
        assert "another solution named 'fast'" in table.problems[0]

    def test_a_language_that_nobody_builds(self, folder):
        folder.solution(make.solution("odd", language="mojo"))
        add(folder, make.trace("odd", 0.1, on=make.workload(rows=3)))
        assert check(folder).match_solution("scale", key(rows=3)) == "odd"


class TestClocks:
    @pytest.mark.parametrize("when", [-(2**31), 2**33, 253 * 10**9])
    def test_files_of_any_time(self, folder, when):
        os.utime(folder.root / "traces" / "all.jsonl", (when, when))
        check(folder)


KILLED = """
import os, sys
from pathlib import Path
from flashinfer_bench.apply.table import ApplyTable
Path.replace = lambda *given: os.kill(os.getpid(), 9)
ApplyTable.load_or_build(sys.argv[1], hardware=sys.argv[2])
"""


def test_a_process_that_is_killed_while_it_keeps_a_table(folder, cache):
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder.root), HERE], check=False)
    assert done.returncode == -signal.SIGKILL
    left = [path.name for path in cache.iterdir()]
    assert left
    assert all(name.startswith(".") for name in left)
    check(folder)

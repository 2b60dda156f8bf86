"""Tables of datasets of every kind, and the definitions and solutions behind them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.apply.hardware import this_hardware
from flashinfer_bench.apply.table import ApplyTable, DefinitionTable
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    UnknownNameError,
)

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

HERE, key = make.HERE, make.key


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def table_of(tmp_path):
    """Make the table of traces, from a folder and from memory: both have to be equal."""

    def build(traces, config=None, hardware=HERE, **parts):
        root = make.Folder.of(tmp_path / "dataset", traces, **parts).root
        table = ApplyTable.load_or_build(root, config, hardware=hardware)
        trace_set = TraceSet.from_path(root, on_error="collect")
        memory = ApplyTable.load_or_build(trace_set, config, hardware=hardware)
        assert memory.definitions == table.definitions
        again = ApplyTable.load_or_build(root, config, hardware=hardware)
        assert (again.definitions, again.digest) == (table.definitions, table.digest)
        return table

    return build


class TestDatasets:
    def test_there_is_none(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="does not exist"):
            ApplyTable.load_or_build(tmp_path / "nowhere", hardware=HERE)
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetNotFoundError, match="not a folder"):
            ApplyTable.load_or_build(tmp_path / "file", hardware=HERE)

    def test_an_empty_one_has_an_empty_table(self, tmp_path):
        (tmp_path / "empty").mkdir()
        table = ApplyTable.load_or_build(str(tmp_path / "empty"), hardware=HERE)
        assert (table.definitions, table.problems) == ({}, [])
        assert not ApplyTable.load_or_build(TraceSet(), hardware=HERE).definitions

    def test_the_one_of_the_environment_is_taken_by_default(self, tmp_path, monkeypatch):
        root = make.Folder.of(tmp_path / "dataset", [make.trace()]).root
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        table = ApplyTable.load_or_build(None, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"

    def test_this_hardware_is_taken_by_default(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        here = this_hardware()
        root = make.Folder.of(tmp_path / "dataset", [make.trace(hardware=here)]).root
        table = ApplyTable.load_or_build(root)
        assert table.hardware == here
        assert table.match_solution("scale", key()) == "fast"

    def test_definitions_without_traces_are_there(self, table_of):
        table = table_of([])
        assert table.definitions == {"scale": DefinitionTable("scale", "scaling")}
        assert table.definitions["scale"].best is None

    def test_traces_of_unknown_definitions_cost_nothing(self, table_of):
        table = table_of([make.trace(), make.trace(of="unknown")], solutions=[make.solution()])
        assert list(table.definitions) == ["scale"]

    def test_broken_files_are_left_out_and_told(self, tmp_path):
        folder = make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 0.5)])
        folder.put("solutions/slow.json", '{"name": "slow", "definition"')
        folder.put("definitions/more.json", "[]")
        folder.put("traces/torn.jsonl", json.dumps(make.trace("slow"))[:200])
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"
        assert len(table.problems) == 3
        for name in ("slow.json", "more.json", "torn.jsonl"):
            assert any(name in problem for problem in table.problems)

    def test_of_two_of_one_name_the_first_file_counts(self, tmp_path):
        folder = make.Folder.of(tmp_path / "dataset", [make.trace()])
        other = make.definition(op_type="another")
        folder.put("definitions/z.json", json.dumps(other))
        folder.put("solutions/z.json", json.dumps(make.solution(author="another")))
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.definitions["scale"].op_type == "scaling"
        assert table.source.solution("fast").author == "somebody"
        assert sum("there is another" in problem for problem in table.problems) == 2

    def test_old_datasets_are_read(self, tmp_path):
        record = make.definition()
        record["type"] = record.pop("op_type")
        bare = make.definition("bare")
        del bare["op_type"]
        folder = make.Folder.of(tmp_path / "dataset", [], definitions=[record])
        folder.put("definitions/copying/bare.json", json.dumps(bare))
        folder.solution(make.solution("old"))
        old = make.trace("old")
        old["evaluation"]["environment"] = {"device": HERE}
        del old["workload"]["uuid"]
        folder.traces([old], "traces/workloads/scale.jsonl")
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.definitions["bare"].op_type == "copying"
        assert table.match_solution("scale", key()) == "old"
        assert table.source.definition("bare").op_type == "copying"
        again = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert again.source.definition("bare").op_type == "copying"

    def test_links_are_followed_once(self, tmp_path):
        folder = make.Folder.of(tmp_path / "dataset", [make.trace()])
        elsewhere = make.Folder(tmp_path / "elsewhere")
        elsewhere.traces([make.trace("slow", 0.5)], "more.jsonl")
        folder.solution(make.solution("slow"))
        (folder.root / "traces" / "linked").symlink_to(elsewhere.root)
        (folder.root / "traces" / "loop").symlink_to(folder.root / "traces")
        (folder.root / "traces" / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.match_solution("scale", key()) == "slow"
        elsewhere.traces([make.trace("slow", 5.0)], "more.jsonl")
        assert ApplyTable.load_or_build(folder.root, hardware=HERE) is not table
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"

    def test_hidden_files_are_not_part_of_it(self, tmp_path):
        folder = make.Folder.of(tmp_path / "dataset", [make.trace()])
        folder.traces([make.trace("slow", 0.1)], "traces/.hidden.jsonl")
        folder.solution(make.solution("slow"))
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"

    def test_what_is_in_memory_counts_and_not_what_is_in_the_folder(self, tmp_path):
        root = make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)]).root
        trace_set = TraceSet.from_path(root)
        trace_set.traces["scale"] = [
            one for one in trace_set.traces["scale"] if one.solution == "slow"
        ]
        table = ApplyTable.load_or_build(trace_set, hardware=HERE)
        assert table.match_solution("scale", key()) == "slow"

    @pytest.mark.parametrize("source", [5, b"path", {"scale": print}])
    def test_other_sources_are_refused(self, source):
        with pytest.raises(ConfigError, match="TraceSet or a path"):
            ApplyTable.load_or_build(source, hardware=HERE)

    def test_other_settings_are_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="ApplyConfig"):
            ApplyTable.load_or_build(tmp_path, {"max_atol": 1.0}, hardware=HERE)


class TestSource:
    @pytest.fixture
    def folder(self, tmp_path):
        return make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])

    @pytest.fixture(params=["cold", "warm", "memory"])
    def source(self, request, folder):
        if request.param == "memory":
            trace_set = TraceSet.from_path(folder.root)
            return ApplyTable.load_or_build(trace_set, hardware=HERE).source
        for _ in range(2 if request.param == "warm" else 1):
            table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        return table.source

    def test_it_has_definitions_and_solutions(self, source, folder):
        assert source.root == folder.root
        assert source.definition("scale").op_type == "scaling"
        assert source.solution("slow").definition == "scale"
        assert source.definition("scale") is source.definition("scale")
        assert list(source.definition_names) == ["scale"]
        assert sorted(source.solution_names()) == ["fast", "slow"]
        assert sorted(source.solution_names("scale")) == ["fast", "slow"]
        assert source.solution_names("other") == []

    def test_unknown_names_come_with_near_ones(self, source):
        with pytest.raises(UnknownNameError, match="did you mean scale"):
            source.definition("scales")
        with pytest.raises(UnknownNameError, match="there are: fast, slow"):
            source.solution("quite different")

    def test_a_file_that_has_changed_is_not_what_was_recorded(self, folder):
        for _ in range(2):
            table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        folder.solution(make.solution("fast", author="mallory"))
        folder.definition(make.definition(op_type="changed"))
        (folder.root / "solutions" / "slow.json").unlink()
        with pytest.raises(DataError, match="has changed"):
            table.source.solution("fast")
        with pytest.raises(DataError, match="has changed"):
            table.source.definition("scale")
        with pytest.raises(DataError, match="cannot be read"):
            table.source.solution("slow")

    def test_a_table_made_by_hand_has_none(self):
        table = ApplyTable({}, HERE, "0")
        assert table.match_solution("scale", key()) is None
        assert "0 definitions" in repr(table)
        with pytest.raises(ConfigError, match="no source"):
            table.source  # noqa: B018


def test_a_kept_table_is_found_without_heavy_imports(tmp_path):
    root = make.Folder.of(tmp_path / "dataset", [make.trace()]).root
    assert ApplyTable.load_or_build(root, hardware=HERE).definitions
    code = (
        "import sys; from flashinfer_bench.apply.table import ApplyTable\n"
        f"table = ApplyTable.load_or_build({str(root)!r}, hardware={HERE!r})\n"
        "print(list(table.definitions), [name for name in "
        "('torch', 'pydantic', 'numpy', 'flashinfer_bench.data') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['scale'] []"

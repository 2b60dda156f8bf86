"""Tables of datasets of every kind, and the definitions and solutions behind them."""

from __future__ import annotations

import json

import pytest

from fib_tests import table_dataset as make
from flashinfer_bench.apply import ApplyConfig, ApplyConfigRegistry
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError, UnknownNameError

pytestmark = pytest.mark.usefixtures("own_cache")


HERE, key = make.HERE, make.key


class TestDatasets:
    def test_there_is_none(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="does not exist"):
            ApplyTable.load_or_build(tmp_path / "nowhere", hardware=HERE)
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetNotFoundError, match="not a folder"):
            ApplyTable.load_or_build(tmp_path / "file", hardware=HERE)

    def test_the_one_of_the_environment_is_taken_by_default(self, tmp_path, monkeypatch):
        root = make.Folder.of(tmp_path / "dataset", [make.trace()]).root
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        table = ApplyTable.load_or_build(None, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"

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

    @pytest.mark.parametrize("value", ["1" + "0" * 400, "1e999", "NaN", "Infinity", '"NaN"'])
    def test_latencies_that_are_none_lose_their_trace_alone(self, tmp_path, value):
        folder = make.Folder.of(tmp_path / "dataset", [make.trace()])
        text = json.dumps(make.trace("slow", 0.777))
        assert "0.777" in text
        folder.put("traces/more.jsonl", text.replace("0.777", value) + "\n")
        table = ApplyTable.load_or_build(folder.root, hardware=HERE)
        assert table.match_solution("scale", key()) == "fast"
        assert len(table.problems) == ("a" in value.lower())  # infinite ones are read, and refused

    def test_settings_without_a_default_are_of_their_definitions_alone(self, tmp_path):
        root = make.Folder.of(tmp_path / "dataset", [make.trace()]).root
        for name, chosen in (("scale", "fast"), ("other", None)):
            settings = ApplyConfigRegistry(per_definition={name: ApplyConfig()})
            table = ApplyTable.load_or_build(root, settings, hardware=HERE)
            assert table.match_solution("scale", key()) == chosen
        (reason,) = table.definitions["scale"].refusals["fast"]
        assert reason.text == "the settings belong to other definitions"

    @pytest.mark.parametrize(
        ("recorded", "here", "counts"),
        [
            ("AMD EPYC", "AMD EPYC (2 cores)", True),
            ("AMD EPYC (2 cores)", "AMD EPYC (2 cores)", True),
            ("AMD EPYC (4 cores)", "AMD EPYC (2 cores)", False),
            ("AMD", "AMD EPYC (2 cores)", False),
        ],
    )
    def test_a_cpu_whose_cores_are_not_told(self, tmp_path, recorded, here, counts):
        root = make.Folder.of(tmp_path / "dataset", [make.trace(hardware=recorded)]).root
        table = ApplyTable.load_or_build(root, hardware=here)
        assert (table.match_solution("scale", key()) is not None) == counts

    def test_what_is_right_by_a_loose_tolerance_alone(self, tmp_path):
        wide = {"max_absolute_error": 0.5, "max_relative_error": 0.5}
        for loose in (False, True):
            note = {"integrity": {"loose_tolerance": True}} if loose else {}
            one = make.trace(correctness={**wide, "extra": note})
            one["evaluation"]["provenance"] = {"evaluator": "default", "evaluator_version": "1"}
            root = make.Folder.of(tmp_path / str(loose), [one]).root
            table = ApplyTable.load_or_build(root, hardware=HERE)
            assert table.match_solution("scale", key()) == (None if loose else "fast")

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


class TestSource:
    @pytest.fixture
    def folder(self, tmp_path):
        return make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])

    @pytest.fixture(params=["folder", "memory"])
    def source(self, request, folder):
        dataset = folder.root
        if request.param == "memory":
            dataset = TraceSet.from_path(folder.root)
        return ApplyTable.load_or_build(dataset, hardware=HERE).source

    def test_it_has_definitions_and_solutions(self, source, folder):
        assert source.root == folder.root
        assert source.definition("scale").op_type == "scaling"
        assert source.solution("slow").definition == "scale"
        assert source.definition("scale") is source.definition("scale")
        assert list(source.definitions) == ["scale"]
        assert sorted(source.solutions) == ["fast", "slow"]

    def test_unknown_names_come_with_near_ones(self, source):
        with pytest.raises(UnknownNameError, match="did you mean scale"):
            source.definition("scales")
        with pytest.raises(UnknownNameError, match="available solutions: fast, slow"):
            source.solution("quite different")

    def test_files_that_change_later_do_not_matter(self, folder):
        source = ApplyTable.load_or_build(folder.root, hardware=HERE).source
        folder.solution(make.solution("fast", author="mallory"))
        (folder.root / "solutions" / "slow.json").unlink()
        assert source.solution("fast").author == "somebody"
        assert source.solution("slow").name == "slow"

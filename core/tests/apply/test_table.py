"""Tables: from files and traces to the solution for a key."""

from __future__ import annotations

import json

import pytest

from fib_tests import table_dataset as make
from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import Solution, TraceSet
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError, UnknownNameError

pytestmark = pytest.mark.usefixtures("own_cache")


HERE, key = make.HERE, make.key


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


def test_the_same_trace_twice_changes_nothing(table_of):
    traces = [make.trace("fast", 1.0), make.trace("slow", 2.0)]
    assert table_of(traces).digest == table_of(traces * 3).digest


class TestEligibility:
    """Each rule, with a slower solution that is without fault."""

    @pytest.fixture
    def winner(self, table_of):
        def find(*traces, **options):
            table = table_of([make.trace("safe", 100.0), *traces], **options)
            return table.match_solution("scale", key())

        return find

    def test_bounds_of_one_definition(self, winner):
        config = ApplyConfigRegistry(per_definition={"scale": ApplyConfig(max_rtol=1.0)})
        assert winner(make.trace(correctness=make.errors(5.0, 0.9)), config=config) == "fast"
        assert winner(make.trace(correctness=make.errors(5.0, 0.9))) == "safe"

    def test_solutions_for_the_cpu_alone(self, winner):
        parts = {"solutions": [make.solution("safe"), make.solution("fast", target=["cpu"])]}
        assert winner(make.trace(), **parts) == "safe"

    def test_solutions_that_have_changed_since(self, winner):
        record = make.solution("fast")
        known = Solution.model_validate(record).hash()

        def judged(content):
            return {"evaluator": "default 1", "extra": {"solution_hash": content}}

        assert winner(make.trace(provenance=judged(known))) == "fast"
        assert winner(make.trace(provenance=judged("f" * 64))) == "safe"

    def test_failures_of_an_earlier_content_are_forgotten(self, winner):
        known = Solution.model_validate(make.solution("fast")).hash()
        old = make.failed("INCORRECT_NUMERICAL", provenance={"extra": {"solution_hash": "0"}})
        new = make.trace(provenance={"extra": {"solution_hash": known}})
        assert winner(old, new) == "fast"

    def test_wrong_once_is_wrong_for_that_key(self, winner):
        assert winner(make.trace(), make.failed("INCORRECT_NUMERICAL")) == "safe"
        assert winner(make.trace(), make.failed("INCORRECT_SHAPE")) == "safe"
        assert winner(make.trace(), make.failed("RUNTIME_ERROR")) == "fast"

    def test_wrong_once_is_never_the_best(self, table_of):
        far = make.workload(rows=64)
        table = table_of(
            [
                make.trace("fast", 1.0),
                make.failed("INCORRECT_NUMERICAL", on=far),
                make.trace("safe", 2.0),
                make.trace("safe", 2.0, on=far),
            ]
        )
        assert table.match_solution("scale", key()) == "fast"
        assert table.definitions["scale"].best == "safe"


class TestKeys:
    def test_the_key_builder_of_the_op_type_makes_them(self, table_of, monkeypatch):
        class ByParity(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                rows = dict(self.axes_in(workload))["rows"]
                return ApplyKey((), (("even", rows % 2 == 0), ("one", 1), ("real", 1.0)))

        monkeypatch.setitem(ApplyKeyFactory._registered, "scaling", ByParity)
        table = table_of([make.trace(on=make.workload(rows=rows)) for rows in (1, 2, 3)])
        found = list(table.definitions["scale"].choices)
        wanted = [(("even", even), ("one", 1), ("real", 1.0)) for even in (False, True)]
        assert [one.feats for one in found] == wanted
        kinds = [[type(value) for _, value in one.feats] for one in found]
        assert kinds == [[bool, int, float]] * 2

    def test_a_key_builder_that_raises_costs_its_runs_only(self, table_of, monkeypatch):
        class Broken(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                if workload.axes["rows"] == 1:
                    raise ZeroDivisionError("no key for this")
                return super().build_from_workload(workload, root)

        monkeypatch.setitem(ApplyKeyFactory._registered, "scaling", Broken)
        table = table_of([make.trace(), make.trace(on=make.workload(rows=2))])
        assert list(table.definitions["scale"].choices) == [key(rows=2)]


class TestOldNames:
    def test_the_choices_can_be_read(self, table_of):
        table = table_of([make.trace("fast", 1.0), make.trace("slow", 2.0)])
        assert table.index == {"scale": {key(rows=1): "fast"}}
        assert table.def_best == {"scale": "fast"}

    def test_settings_are_part_of_the_digest(self, table_of):
        traces = [make.trace("fast", 1.0)]
        policies = ("fallback_only", "use_def_best")
        one, other = (table_of(traces, ApplyConfig(on_miss_policy=each)) for each in policies)
        own = ApplyConfigRegistry(ApplyConfig(), {"scale": ApplyConfig(strict=True)})
        assert len({one.digest, other.digest, table_of(traces, own).digest}) == 3


# ---------------------------------------------------------------------------------------- datasets


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

    def test_unknown_names_come_with_near_ones(self, folder):
        source = ApplyTable.load_or_build(folder.root, hardware=HERE).source
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

"""Tables: from files and traces to the solution for a key."""

from __future__ import annotations

import pytest

from fib_tests import table_dataset as make
from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import Solution, TraceSet

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


class TestWinners:
    def test_the_fastest_wins_each_key(self, table_of):
        big = make.workload(rows=8)
        table = table_of(
            [
                make.trace("fast", 1.0),
                make.trace("slow", 2.0),
                make.trace("fast", 9.0, on=big),
                make.trace("slow", 8.0, on=big),
            ]
        )
        assert table.match_solution("scale", key(rows=1)) == "fast"
        assert table.match_solution("scale", key(rows=8)) == "slow"
        assert table.match_solution("scale", key(rows=3)) is None

    def test_the_median_of_repeated_runs_counts(self, table_of):
        lucky = [make.trace("lucky", ms) for ms in (0.1, 5.0, 5.0)]
        table = table_of([*lucky, make.trace("steady", 2.0)])
        assert table.match_solution("scale", key()) == "steady"

    def test_the_same_trace_twice_changes_nothing(self, table_of):
        traces = [make.trace("fast", 1.0), make.trace("slow", 2.0)]
        assert table_of(traces).digest == table_of(traces * 3).digest

    def test_workloads_that_share_a_key_count_together(self, table_of):
        other = make.workload(uuid="a-other")
        table = table_of(
            [
                make.trace("a", 1.0),
                make.trace("a", 9.0, on=other),
                make.trace("b", 2.0),
                make.trace("b", 2.0, on=other),
            ]
        )
        assert table.match_solution("scale", key()) == "b"

    def test_ties_go_to_the_smaller_name(self, table_of):
        table = table_of([make.trace(name, 1.0) for name in ("m", "b", "x")])
        assert table.match_solution("scale", key()) == "b"

    def test_the_best_over_all_keys(self, table_of):
        table = table_of(
            [
                make.trace(name, ms, on=make.workload(rows=rows))
                for rows, times in {1: (1, 1.1), 2: (9, 1), 3: (5, 1)}.items()
                for name, ms in zip("ab", times, strict=True)
            ]
        )
        assert table.match_solution("scale", key(rows=1)) == "a"
        assert table.definitions["scale"].best == "b"


class TestEligibility:
    """Each rule, with a slower solution that is without fault."""

    @pytest.fixture
    def winner(self, table_of):
        def find(*traces, **options):
            table = table_of([make.trace("safe", 100.0), *traces], **options)
            return table.match_solution("scale", key())

        return find

    def test_another_series_of_the_toolchain(self, winner, monkeypatch):
        monkeypatch.setattr(
            "flashinfer_bench.tensors.devices.installed_versions", lambda: {"cuda": "13.0"}
        )
        parts = {"solutions": [make.solution("safe"), make.solution("fast", language="cuda")]}
        assert winner(make.trace(), **parts) == "safe"

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

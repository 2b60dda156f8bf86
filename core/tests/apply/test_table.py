"""Tables: from files and traces to the solution for a key."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import ApplyKey, AxesOnlyKeyBuilder
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import Solution, TraceSet

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
        choice = table.definitions["scale"].lookup(key(rows=8))
        assert (choice.solution, choice.latency_ms, choice.workload) == ("slow", 8.0, "w-8-2")
        assert choice.key == key(rows=8)

    def test_what_was_not_recorded_is_not_there(self, table_of):
        table = table_of([make.trace()])
        assert table.match_solution("scale", key(rows=3)) is None
        assert table.match_solution("other", key()) is None
        assert table.definitions["scale"].lookup(ApplyKey(())) is None

    def test_the_median_of_repeated_runs_counts(self, table_of):
        lucky = [make.trace("lucky", ms) for ms in (0.1, 5.0, 5.0)]
        table = table_of([*lucky, make.trace("steady", 2.0)])
        assert table.match_solution("scale", key()) == "steady"

    def test_the_same_trace_twice_changes_nothing(self, table_of):
        traces = [make.trace("fast", 1.0), make.trace("slow", 2.0)]
        assert table_of(traces).definitions == table_of(traces * 3).definitions

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
        assert table.definitions["scale"].lookup(key()).workload == "a-other"

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
        best = table.definitions["scale"].best
        assert (best.solution, best.key, best.latency_ms) == ("b", key(rows=1), 1.1)


class TestEligibility:
    """Each rule, with a slower solution that is without fault."""

    @pytest.fixture
    def winner(self, table_of):
        def find(*traces, **options):
            table = table_of([make.trace("safe", 100.0), *traces], **options)
            return table.match_solution("scale", key())

        return find

    @pytest.mark.parametrize(
        "status",
        [
            "INCORRECT_SHAPE",
            "INCORRECT_NUMERICAL",
            "INCORRECT_DTYPE",
            "RUNTIME_ERROR",
            "COMPILE_ERROR",
            "TIMEOUT",
        ],
    )
    def test_failures(self, winner, status):
        assert winner(make.failed(status)) == "safe"

    def test_other_hardware(self, winner):
        assert winner(make.trace(hardware=make.ELSEWHERE)) == "safe"
        assert winner(make.trace(hardware=f"{HERE} NVL")) == "safe"

    def test_another_series_of_the_toolchain(self, winner, monkeypatch):
        monkeypatch.setattr(
            "flashinfer_bench.apply.hardware.installed_versions", lambda: {"cuda": "13.0"}
        )
        parts = {"solutions": [make.solution("safe"), make.solution("fast", language="cuda")]}
        assert winner(make.trace(), **parts) == "safe"

    def test_errors_beyond_tolerance(self, winner):
        assert winner(make.trace(correctness=make.errors(0.5, 0.5))) == "safe"
        assert winner(make.trace(correctness=make.errors("NaN", "NaN"))) == "safe"

    def test_a_correct_bf16_kernel_is_taken(self, winner):
        assert winner(make.trace(correctness=make.errors(0.03125, 0.0078))) == "fast"
        assert winner(make.trace(correctness=make.errors(0.0078, 13.5))) == "fast"

    def test_bounds_of_one_definition(self, winner):
        config = ApplyConfigRegistry(per_definition={"scale": ApplyConfig(max_rtol=1.0)})
        assert winner(make.trace(correctness=make.errors(5.0, 0.9)), config=config) == "fast"
        assert winner(make.trace(correctness=make.errors(5.0, 0.9))) == "safe"

    def test_integrity(self, winner):
        note = {"integrity": {"violation": "hidden time"}}
        assert winner(make.trace(correctness=make.errors(0, 0, extra=note))) == "safe"

    def test_no_latency(self, winner):
        assert winner(make.trace(latency=0.0)) == "safe"
        assert winner(make.trace(latency=-1.0)) == "safe"

    def test_unknown_solutions(self, winner):
        assert winner(make.trace(), solutions=[make.solution("safe")]) == "safe"

    def test_solutions_of_another_definition(self, winner):
        parts = {"solutions": [make.solution("safe"), make.solution("fast", of="other")]}
        assert winner(make.trace(), **parts) == "safe"

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

    def test_wrong_on_other_hardware_says_nothing(self, winner):
        elsewhere = make.failed("INCORRECT_NUMERICAL", hardware=make.ELSEWHERE)
        assert winner(make.trace(), elsewhere) == "fast"

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
        assert table.definitions["scale"].best.solution == "safe"

    def test_workloads_without_a_needed_axis(self, winner):
        short = make.workload()
        del short["axes"]["columns"]
        assert winner(make.trace(on=short)) == "safe"


class TestKeys:
    def test_the_key_builder_of_the_op_type_makes_them(self, table_of):
        class ByParity(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                rows = dict(self.axes_in(workload))["rows"]
                return ApplyKey((), (("even", rows % 2 == 0), ("one", 1), ("real", 1.0)))

        ApplyKeyFactory.register("scaling", ByParity)
        try:
            traces = [make.trace(on=make.workload(rows=rows)) for rows in (1, 2, 3)]
            table = table_of(traces)
        finally:
            ApplyKeyFactory.unregister("scaling")
        found = list(table.definitions["scale"].choices)
        wanted = [(("even", even), ("one", 1), ("real", 1.0)) for even in (False, True)]
        assert [one.feats for one in found] == wanted
        kinds = [[type(value) for _, value in one.feats] for one in found]
        assert kinds == [[bool, int, float]] * 2

    def test_a_key_builder_that_raises_costs_its_runs_only(self, table_of):
        class Broken(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                if workload.axes["rows"] == 1:
                    raise ZeroDivisionError("no key for this")
                return super().build_from_workload(workload, root)

        ApplyKeyFactory.register("scaling", Broken)
        try:
            table = table_of([make.trace(), make.trace(on=make.workload(rows=2))])
        finally:
            ApplyKeyFactory.unregister("scaling")
        assert list(table.definitions["scale"].choices) == [key(rows=2)]

    def test_a_definition_without_variable_axes_has_one_key(self, table_of):
        axes = {name: {"type": "const", "value": 2} for name in ("rows", "columns", "depth")}
        table = table_of([make.trace()], definitions=[make.definition(axes=axes)])
        assert list(table.definitions["scale"].choices) == [ApplyKey(())]


# ---------------------------------------------------------------------- tables made at random

errors = st.sampled_from([(0.0, 0.0), (0.03, 0.007), (0.5, 0.5), (0.005, 40.0), ("NaN", 0.0)])
runs = st.builds(
    dict,
    name=st.sampled_from(["a", "b", "c", "gone"]),
    of=st.sampled_from(["scale", "other", "gone"]),
    rows=st.integers(1, 3),
    uuid=st.sampled_from("uv"),
    latency=st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0]),
    hardware=st.sampled_from([HERE, HERE, HERE, make.ELSEWHERE]),
    errors=errors,
    status=st.sampled_from(["PASSED"] * 5 + ["INCORRECT_NUMERICAL", "TIMEOUT"]),
)


def as_trace(run):
    on = make.workload(rows=run["rows"], uuid=f"{run['rows']}{run['uuid']}")
    options = {"of": run["of"], "on": on, "hardware": run["hardware"]}
    if run["status"] != "PASSED":
        return make.failed(run["status"], run["name"], **options)
    correctness = make.errors(*run["errors"])
    return make.trace(run["name"], run["latency"], correctness=correctness, **options)


def expected(every):
    """Say who wins, in as simple a way as there is."""
    good, wrong = defaultdict(list), set()
    for run in every:
        place = run["of"], run["rows"], run["name"]
        if run["hardware"] != HERE or "gone" in place or run["of"] != "scale":
            continue
        if run["status"] == "INCORRECT_NUMERICAL":
            wrong.add(place)
        fine = run["errors"] in [(0.0, 0.0), (0.03, 0.007), (0.005, 40.0)]
        if run["status"] == "PASSED" and fine and run["latency"] > 0:
            good[place].append(run["latency"])
    found = {}
    for (of, rows, name), latencies in good.items():
        if (of, rows, name) not in wrong:
            found.setdefault(rows, []).append((median(latencies), name))
    return {rows: min(each) for rows, each in found.items()}


class TestAtRandom:
    @settings(
        deadline=None,
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(every=st.lists(runs, max_size=25))
    def test_exactly_the_right_solutions_are_taken(self, table_of, every):
        definitions = [make.definition(), make.definition("other")]
        solutions = [make.solution(name) for name in "abc"]
        traces = [as_trace(run) for run in every]
        table = table_of(traces, definitions=definitions, solutions=solutions)
        found = {
            dict(one.key.axes)["rows"]: (one.latency_ms, one.solution)
            for one in table.definitions["scale"].choices.values()
        }
        assert found == expected(every)
        assert not table.definitions["other"].choices

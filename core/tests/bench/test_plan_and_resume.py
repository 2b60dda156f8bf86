from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.plan import Done, Plan, finished, is_final, make_plan
from flashinfer_bench.data import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    Trace,
)
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog


def names(plan: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (item.definition.name, item.workload.uuid, tuple(s.name for s in item.solutions))
        for item in plan.items
    ]


@pytest.fixture
def dataset(problems: Any) -> Any:
    """Two definitions, two workloads each; solutions a and b of the first, c of the second."""
    return problems.dataset(
        problems.good("a"),
        problems.good("b"),
        problems.good("c", "twice"),
        definitions=[problems.definition(), problems.definition("twice")],
        workloads=2,
    )


class TestPlan:
    def test_everything(self, dataset: Any, catalog: Catalog) -> None:
        plan = make_plan(dataset, BenchmarkConfig(), catalog)
        assert names(plan) == [
            ("double", "double-0", ("a", "b")),
            ("double", "double-1", ("a", "b")),
            ("twice", "twice-0", ("c",)),
            ("twice", "twice-1", ("c",)),
        ]
        assert (plan.total, plan.resumed, plan.skipped) == (6, 0, ())

    def test_filters(self, dataset: Any, catalog: Catalog) -> None:
        by_definition = make_plan(dataset, BenchmarkConfig(definitions=["twice"]), catalog)
        assert by_definition.total == 2
        by_solution = make_plan(dataset, BenchmarkConfig(solutions=["b"]), catalog)
        assert names(by_solution) == [
            ("double", "double-0", ("b",)),
            ("double", "double-1", ("b",)),
        ]

    @pytest.mark.parametrize(
        ("config", "unknown", "hint"),
        [
            ({"definitions": ["duoble", "twice"]}, ("duoble",), "did you mean double?"),
            ({"definitions": ["zzzzz"]}, ("zzzzz",), "available definitions: double, twice"),
            ({"solutions": ["a", "q"]}, ("q",), "available solutions: a, b, c"),
        ],
    )
    def test_unknown_names(
        self, config: Any, unknown: Any, hint: str, dataset: Any, catalog: Catalog
    ) -> None:
        with pytest.raises(SelectionError) as caught:
            make_plan(dataset, BenchmarkConfig(**config), catalog)
        assert caught.value.unknown == unknown
        assert caught.value.hint == hint

    def test_definition_that_lacks_something_is_named(
        self, problems: Any, catalog: Catalog, caplog: pytest.LogCaptureFixture
    ) -> None:
        dataset = problems.dataset(
            problems.good("a"), definitions=[problems.definition(), problems.definition("twice")]
        )
        dataset.workloads["twice"] = []
        with caplog.at_level("WARNING"):
            assert make_plan(dataset, BenchmarkConfig(), catalog).total == 1
        assert caplog.messages == ["definition 'twice' has no solution and no workload"]

    def test_a_builder_for_another_device_is_a_skip(self, problems: Any, catalog: Catalog) -> None:
        gpu = problems.solution("x", "g", language="gpu_language")
        dataset = problems.dataset(problems.good("a"), gpu, workloads=2)
        plan = make_plan(dataset, BenchmarkConfig(), catalog, device="cpu")
        (entry,) = plan.skipped
        assert (entry.kind, entry.solution, entry.count) == ("device", "g", 2)
        assert entry.reason == "gpu_language solutions run on cuda; this run uses cpu"
        for device in ("cuda:1", None):
            assert make_plan(dataset, BenchmarkConfig(), catalog, device=device).skipped == ()

    def test_what_is_written_for_the_cpu_is_no_part_of_a_run_on_a_gpu(
        self, problems: Any, catalog: Catalog
    ) -> None:
        hosts = [["cpu"], ["CPU"], ["cpu", "H100"], ["H100"]]
        made = [
            problems.solution("x", f"s{number}", target_hardware=names)
            for number, names in enumerate(hosts)
        ]
        dataset = problems.dataset(*made)
        plan = make_plan(dataset, BenchmarkConfig(), catalog, device="cuda:0")
        assert {(skip.kind, skip.solution) for skip in plan.skipped} == {
            ("device", "s0"),
            ("device", "s1"),
        }
        assert "target_hardware" in plan.skipped[0].reason
        assert "cuda:0" in plan.skipped[0].reason
        assert make_plan(dataset, BenchmarkConfig(), catalog, device="cpu").skipped == ()

    def test_what_can_be_compiled_ahead(self, problems: Any, catalog: Catalog) -> None:
        dataset = problems.dataset(
            problems.good("a"),
            problems.compiled("b"),
            problems.compiled("c"),
            problems.compiled("d", "", "twice"),
            definitions=[problems.definition(), problems.definition("twice")],
            workloads=2,
        )
        done = {Done("double", "b", f"double-{index}") for index in range(2)}
        plan = make_plan(dataset, BenchmarkConfig(), catalog, done)
        built = [(build.definition.name, build.solution.name) for build in plan.builds]
        assert built == [("double", "c"), ("twice", "d")]


@pytest.fixture
def traced(problems: Any) -> Any:
    def make(
        status: str = "RUNTIME_ERROR", hardware: str = "here", provenance: Any = None
    ) -> Trace:
        chosen = EvaluationStatus(status)
        measured = Correctness(max_absolute_error=0.0, max_relative_error=0.0)
        evaluation = Evaluation(
            status=chosen,
            environment=Environment(hardware=hardware),
            timestamp="2026-01-01T00:00:00",
            correctness=measured if status in ("PASSED", "INCORRECT_NUMERICAL") else None,
            performance=Performance(latency_ms=1.0, reference_latency_ms=1.0, speedup_factor=1.0)
            if status == "PASSED"
            else None,
            provenance=provenance,
        )
        return Trace(
            definition="double",
            workload=problems.workload(uuid="w"),
            solution="a",
            evaluation=evaluation,
        )

    return make


class TestResume:
    @pytest.mark.parametrize("status", [status.value for status in EvaluationStatus])
    def test_all_but_a_time_out_are_final(self, status: str, traced: Any) -> None:
        assert is_final(traced(status)) is (status != "TIMEOUT")

    def test_crashes_are_retried(self, traced: Any) -> None:
        assert not is_final(traced(provenance=Provenance(transient=True)))
        assert is_final(traced(provenance=Provenance(transient=False)))

    def test_changed_solution_is_run_again(self, traced: Any, problems: Any) -> None:
        solution = problems.good("a")
        same = Provenance(extra={"solution_hash": solution.hash()})
        other = Provenance(extra={"solution_hash": "something else"})
        odd = Provenance(extra={"solution_hash": 3})
        assert finished([traced(provenance=same)], [solution], {"here"})
        assert not finished([traced(provenance=other)], [solution], {"here"})
        assert finished([traced(provenance=odd)], [solution], {"here"})
        assert finished([traced()], [solution], {"here"})

    def test_same_hardware_only(self, traced: Any, problems: Any) -> None:
        traces = [traced(hardware="there")]
        assert finished(traces, [problems.good("a")], {"here"}) == set()
        assert finished(traces, [problems.good("a")], {"here", "there"}) == {
            Done("double", "a", "w")
        }

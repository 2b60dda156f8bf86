import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.digests import definition_digest
from flashinfer_bench.bench.plan import Done, finished, is_final, make_plan
from flashinfer_bench.data import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    Trace,
    TraceSet,
)
from flashinfer_bench.errors import SelectionError


def names(plan):
    return [
        (item.definition.name, item.workload.uuid, tuple(s.name for s in item.solutions))
        for item in plan.items
    ]


@pytest.fixture
def dataset(problems):
    """Two definitions, two workloads each; solutions a and b of the first, c of the second."""
    return problems.dataset(
        problems.good("a"),
        problems.good("b"),
        problems.good("c", "twice"),
        definitions=[problems.definition(), problems.definition("twice")],
        workloads=2,
    )


class TestPlan:
    def test_filters(self, dataset, catalog):
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
    def test_unknown_names(self, config, unknown, hint, dataset, catalog):
        with pytest.raises(SelectionError) as caught:
            make_plan(dataset, BenchmarkConfig(**config), catalog)
        assert caught.value.unknown == unknown
        assert caught.value.hint == hint

    def test_definition_that_lacks_something_is_named(self, problems, catalog, caplog):
        dataset = problems.dataset(
            problems.good("a"), definitions=[problems.definition(), problems.definition("twice")]
        )
        dataset.workloads["twice"] = []
        with caplog.at_level("WARNING"):
            assert make_plan(dataset, BenchmarkConfig(), catalog).total == 1
        assert caplog.messages == ["definition 'twice' has no solution and no workload"]

    def test_what_is_written_for_the_cpu_is_no_part_of_a_run_on_a_gpu(self, problems, catalog):
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

    def test_what_can_be_compiled_ahead(self, problems, catalog):
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
def traced(problems):
    def make(status="RUNTIME_ERROR", hardware="here", provenance=None):
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
    def test_all_but_a_time_out_are_final(self, status, traced):
        assert is_final(traced(status)) is (status != "TIMEOUT")

    def test_crashes_are_retried(self, traced):
        assert not is_final(traced(provenance=Provenance(transient=True)))
        assert is_final(traced(provenance=Provenance(transient=False)))

    @pytest.fixture
    def done(self, problems):
        def find(*traces, hardware=(), **changes):
            parts = {"definition": problems.definition(), "workload": problems.workload(uuid="w")}
            parts.update(changes)
            held = Trace(definition="double", workload=parts["workload"])
            dataset = TraceSet(
                definitions={"double": parts["definition"]},
                solutions={"double": [problems.good("a")]},
                workloads={"double": [held]},
                traces={"double": list(traces)},
            )
            return finished(dataset, {"here", *hardware})

        return find

    def test_what_has_changed_is_run_again(self, traced, problems, done):
        same = {"solution_hash": problems.good("a").hash()}
        for extra, counts in (
            (same, 1),
            ({"solution_hash": "other"}, 0),
            ({"solution_hash": 3}, 1),
        ):
            assert len(done(traced(provenance=Provenance(extra=extra)))) == counts
        assert done(traced())
        other = traced(provenance=Provenance(extra={"solution_hash": "other"}))
        assert done(other, traced())
        assert not done(traced(), other)  # what was undone since
        edited = problems.workload(uuid="w").model_copy(update={"axes": {"n": 5}})
        assert not done(traced(), workload=edited)
        was = Provenance(definition_hash=definition_digest(problems.definition()))
        assert done(traced(provenance=was))
        assert not done(traced(provenance=was), definition=problems.definition("twice"))

    def test_same_hardware_only(self, traced, done):
        trace = traced(hardware="there")
        assert done(trace) == set()
        assert done(trace, hardware=["there"]) == {Done("double", "a", "w")}

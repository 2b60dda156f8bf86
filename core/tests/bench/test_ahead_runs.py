"""Whole runs that compile ahead, with stand-ins for the processes: on a CPU, and as on GPUs."""

from __future__ import annotations

import threading
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig, RunObserver
from flashinfer_bench.data import Environment
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from flashinfer_bench.bench import BuildOutcome
    from flashinfer_bench.data import Trace, TraceSet

SETTINGS: dict[str, Any] = {"warmup_runs": 1, "iterations": 2, "num_trials": 1, "build_jobs": 2}


@pytest.fixture
def benchmark_of(executor: Any, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make benchmarks on devices that are not there."""
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor)
    here = Environment(hardware="a test", libs={})
    monkeypatch.setattr("flashinfer_bench.tensors.env_snapshot", lambda device: here)
    made: list[Benchmark] = []

    def make(dataset: TraceSet, *devices: str, observers: Any = (), **settings: Any) -> Benchmark:
        target = "flashinfer_bench.bench.benchmark.choose_devices"
        monkeypatch.setattr(target, lambda device: list(devices or ("cpu",)))
        config = BenchmarkConfig(**{**SETTINGS, "trust": "off", **settings})
        made.append(Benchmark(dataset, config, observers=observers, catalog=catalog))
        return made[-1]

    yield make
    for item in made:
        item.close()


def statuses(found: TraceSet) -> dict[str, str]:
    return {
        str(trace.solution): str(trace.evaluation.status)
        for group in found.traces.values()
        for trace in group
        if trace.evaluation is not None
    }


def stages(executor: Any, *kinds: str) -> list[str]:
    return [event[0] for event in executor.events if event[0] in kinds]


@pytest.fixture
def mixed(problems: Any) -> Any:
    """Two definitions with compiled and other solutions, and two workloads each."""
    return problems.dataset(
        problems.compiled("a"),
        problems.good("b"),
        problems.compiled("c", "build"),
        problems.compiled("d", "", "twice"),
        definitions=[problems.definition(), problems.definition("twice")],
        workloads=2,
    )


class TestOnTheCpu:
    def test_nothing_is_compiled_between_the_first_and_the_last_timing_of_a_definition(
        self, benchmark_of: Any, mixed: Any, executor: Any
    ) -> None:
        found = benchmark_of(mixed).evaluate()
        assert statuses(found) == {
            "a": "PASSED",
            "b": "PASSED",
            "c": "COMPILE_ERROR",
            "d": "PASSED",
        }
        order = [kind for kind, _ in groupby(stages(executor, "compiled", "fire"))]
        # "twice" comes after "double": each is compiled as a whole, then timed as a whole.
        # Each workload times its reference and each solution that is right.
        assert order == ["compiled", "fire"] * 2

    def test_one_whose_compiler_died_is_built_by_its_evaluation(
        self, benchmark_of: Any, problems: Any, executor: Any
    ) -> None:
        dataset = problems.dataset(problems.compiled("a", "crash"))
        assert statuses(benchmark_of(dataset).evaluate()) == {"a": "PASSED"}
        assert "a" in [name for _, name in executor.of("load")]


class TestAsOnGpus:
    def test_compiling_overlaps_timing(
        self, benchmark_of: Any, problems: Any, executor: Any
    ) -> None:
        """The slow compiler ends only after the quick solution has been timed."""
        executor.gates["slow"] = threading.Event()

        class Opens(RunObserver):
            def evaluation_finished(self, trace: Trace) -> None:
                executor.gates["slow"].set()

        dataset = problems.dataset(problems.compiled("slow"), problems.compiled("quick"))
        found = benchmark_of(dataset, "cuda:0", observers=[Opens()]).evaluate()
        assert statuses(found) == {"slow": "PASSED", "quick": "PASSED"}
        names = [trace.solution for trace in found.traces["double"]]
        assert names == ["quick", "slow"]
        # The reference and the quick solution were timed while the slow one was being compiled.
        order = stages(executor, "compiled", "fire")
        assert order.index("fire") < len(order) - 1 - order[::-1].index("compiled")

    def test_a_device_that_is_lost_does_not_take_the_compilers_with_it(
        self, benchmark_of: Any, problems: Any, executor: Any
    ) -> None:
        class Breaks(RunObserver):
            def build_finished(self, outcome: BuildOutcome) -> None:
                executor.broken = True

        dataset = problems.dataset(problems.compiled("a"))
        with pytest.raises(RunnerFatalError):
            benchmark_of(dataset, "cuda:0", observers=[Breaks()], build_jobs=1).evaluate()


class TestNoVerdict:
    def test_a_reference_that_finds_the_disk_full(self, benchmark_of: Any, problems: Any) -> None:
        reference = (
            "from flashinfer_bench.bench.executors.base import CandidateFailed\n"
            "raise CandidateFailed('K: full', stage='load', kind='K', traceback='',"
            " about='storage')\ndef run(x): return x"
        )
        definition = problems.definition(reference=reference)
        benchmark = benchmark_of(problems.dataset(problems.good("a"), definitions=[definition]))
        assert benchmark.evaluate().traces == {}
        (skip,) = benchmark.skipped
        assert skip.kind == "capability"
        assert skip.reason == "the reference of 'double' cannot be built here: full"


class TestEnds:
    def test_an_observer_that_raises_ends_the_run(
        self, benchmark_of: Any, problems: Any, executor: Any
    ) -> None:
        class Bad(RunObserver):
            def build_finished(self, outcome: BuildOutcome) -> None:
                raise LookupError("terminal is gone")

        dataset = problems.dataset(problems.compiled("a"))
        with pytest.raises(LookupError, match="terminal is gone"):
            benchmark_of(dataset, observers=[Bad()]).evaluate()
        assert len(executor.of("spawn")) == len(executor.of("close"))

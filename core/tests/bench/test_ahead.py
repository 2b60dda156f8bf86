"""When what is compiled, with stand-ins for the processes."""

from __future__ import annotations

import threading
from itertools import groupby
from typing import Any

import pytest

from fib_tests.threads import eventually
from flashinfer_bench.bench import Benchmark, BenchmarkConfig, RunObserver
from flashinfer_bench.bench.builds import BuildAhead
from flashinfer_bench.bench.plan import Build
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.data import Environment


@pytest.fixture
def ahead_of(executor, problems):
    """Make `BuildAhead` of solutions, by default as on a GPU; all are closed after the test."""
    made = []

    def make(*solutions, overlap=True, jobs=2, **options):
        builds = [Build(problems.definition(item.definition), item) for item in solutions]
        made.append(
            BuildAhead(
                builds,
                executor,
                jobs=jobs,
                timeout_s=30,
                overlap=overlap,
                sandbox=Sandbox("off"),
                **options,
            )
        )
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


def gate(executor, *names):
    """Have the compilers of some solutions wait until their events are set."""
    executor.gates.update({name: threading.Event() for name in names})
    return [executor.gates[name] for name in names]


def compiled(executor):
    return [name for _, name in executor.of("compile")]


def test_without_processes_nothing_is_compiled_in_advance(ahead_of, executor, problems, caplog):
    executor.broken = True
    told = []
    ahead = ahead_of(problems.compiled("a"), on_finished=told.append)
    ahead.start()
    assert ahead.outcome(problems.compiled("a")) is None
    assert told == []
    assert "a was not compiled in advance: no process can be started" in caplog.text


def test_interrupt_ends_compilers_and_whoever_waits(ahead_of, executor, problems):
    gate(executor, "a", "b", "c")
    told = []
    solutions = [problems.compiled(name) for name in "abc"]
    ahead = ahead_of(*solutions, on_finished=told.append)
    ahead.start()
    assert eventually(lambda: len(compiled(executor)) == 2)
    threading.Timer(0.05, ahead.interrupt).start()
    with pytest.raises(RunInterrupted):
        ahead.outcome(solutions[0])
    with pytest.raises(RunInterrupted):
        ahead.outcome(solutions[2])
    ahead.close()
    assert told == []  # nobody is to blame for being killed
    assert len(executor.of("spawn")) == len(executor.of("close"))
    assert "c" not in compiled(executor)


def test_what_is_needed_next_is_compiled_next(ahead_of, executor, problems):
    (first,) = gate(executor, "a")
    solutions = [problems.compiled(name, "", d) for name, d in ("ax", "bx", "cy", "dx")]
    ahead = ahead_of(*solutions, jobs=1)
    ahead.start()
    assert eventually(lambda: compiled(executor) == ["a"])
    ahead.prepare("y")
    first.set()
    ahead.outcome(solutions[-1])
    assert compiled(executor) == ["a", "c", "b", "d"]


# ------------------------------------------------------------------ whole runs that compile ahead

SETTINGS: dict[str, Any] = {"warmup_runs": 1, "iterations": 2, "num_trials": 1, "build_jobs": 2}


@pytest.fixture
def benchmark_of(executor, catalog, monkeypatch):
    """Make benchmarks on devices that are not there."""
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor)
    here = Environment(hardware="a test", libs={})
    monkeypatch.setattr("flashinfer_bench.tensors.env_snapshot", lambda device: here)
    made = []

    def make(dataset, *devices, observers=(), **settings):
        target = "flashinfer_bench.bench.benchmark.choose_devices"
        monkeypatch.setattr(target, lambda device: list(devices or ("cpu",)))
        config = BenchmarkConfig(**{**SETTINGS, "trust": "off", **settings})
        made.append(Benchmark(dataset, config, observers=observers, catalog=catalog))
        return made[-1]

    yield make
    for item in made:
        item.close()


def statuses(found):
    return {
        str(trace.solution): str(trace.evaluation.status)
        for group in found.traces.values()
        for trace in group
        if trace.evaluation is not None
    }


def stages(executor, *kinds):
    return [event[0] for event in executor.events if event[0] in kinds]


@pytest.fixture
def mixed(problems):
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
        self, benchmark_of, mixed, executor
    ):
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
        self, benchmark_of, problems, executor
    ):
        dataset = problems.dataset(problems.compiled("a", "crash"))
        assert statuses(benchmark_of(dataset).evaluate()) == {"a": "PASSED"}
        assert "a" in [name for _, name in executor.of("load")]


def test_compiling_overlaps_timing(benchmark_of, problems, executor):
    """The slow compiler ends only after the quick solution has been timed."""
    executor.gates["slow"] = threading.Event()

    class Opens(RunObserver):
        def evaluation_finished(self, trace):
            executor.gates["slow"].set()

    dataset = problems.dataset(problems.compiled("slow"), problems.compiled("quick"))
    found = benchmark_of(dataset, "cuda:0", observers=[Opens()]).evaluate()
    assert statuses(found) == {"slow": "PASSED", "quick": "PASSED"}
    names = [trace.solution for trace in found.traces["double"]]
    assert names == ["quick", "slow"]
    # The reference and the quick solution were timed while the slow one was being compiled.
    order = stages(executor, "compiled", "fire")
    assert order.index("fire") < len(order) - 1 - order[::-1].index("compiled")


def test_a_reference_that_finds_the_disk_full(benchmark_of, problems):
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


def test_an_observer_that_raises_ends_the_run(benchmark_of, problems, executor):
    class Bad(RunObserver):
        def build_finished(self, outcome):
            raise LookupError("terminal is gone")

    dataset = problems.dataset(problems.compiled("a"))
    with pytest.raises(LookupError, match="terminal is gone"):
        benchmark_of(dataset, observers=[Bad()]).evaluate()
    assert len(executor.of("spawn")) == len(executor.of("close"))

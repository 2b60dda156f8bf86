from __future__ import annotations

import json
import logging
from typing import Any

import pluggy
import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig, RunObserver
from flashinfer_bench.errors import (
    CapabilityError,
    ConfigError,
    RunnerFatalError,
    StorageError,
)
from flashinfer_bench.plugins import hookimpl, hookspecs

CONFIG = {"device": "cpu", "warmup_runs": 1, "iterations": 2, "num_trials": 1}


class Diary(RunObserver):
    """Writes down what it is told."""

    def __init__(self):
        self.entries = []

    def started(self, total):
        self.entries.append(("started", total))

    def evaluation_started(self, definition, workload, solution):
        self.entries.append(("begins", definition, workload.uuid, solution))

    def evaluation_finished(self, trace):
        assert trace.evaluation is not None
        self.entries.append(("ends", trace.solution, str(trace.evaluation.status)))

    def skipped(self, skipped):
        self.entries.append(("skipped", skipped.kind, skipped.solution))

    def finished(self):
        self.entries.append(("finished",))


@pytest.fixture
def benchmark_of(executor, catalog, monkeypatch):
    """Make benchmarks whose candidates are fakes; all of them are closed in the end."""
    monkeypatch.setattr("flashinfer_bench.bench.benchmark.make_executor", lambda *names: executor)
    made = []

    def make(dataset, *observers, **settings):
        config = BenchmarkConfig(**{**CONFIG, **settings})
        made.append(Benchmark(dataset, config, observers=observers, catalog=catalog))
        return made[-1]

    yield make
    for item in made:
        item.close()


def statuses(traces):
    return [(trace.solution, str(trace.evaluation.status)) for trace in traces]


def stored_lines(root):
    return [
        json.loads(line)
        for path in sorted((root / "traces").rglob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_evaluate_stores_nothing_until_flush(benchmark_of, problems, tmp_path):
    dataset = problems.dataset(problems.good("a"), root=tmp_path)
    benchmark = benchmark_of(dataset)
    assert statuses(benchmark.evaluate().traces["double"]) == [("a", "PASSED")]
    assert stored_lines(tmp_path) == []
    assert dataset.traces == {}
    benchmark.flush()
    benchmark.flush()
    assert len(stored_lines(tmp_path)) == 1
    assert len(dataset.traces["double"]) == 1


class TestObservers:
    def test_are_told_everything_in_order(self, benchmark_of, problems):
        diary = Diary()
        dataset = problems.dataset(
            problems.good("a"),
            problems.solution("def run(x): return x", "b"),
            problems.solution("x", "m", language="mojo"),
        )
        benchmark_of(dataset, diary).run_all()
        assert diary.entries == [
            ("skipped", "capability", "m"),
            ("started", 2),
            ("begins", "double", "double-0", "a"),
            ("ends", "a", "PASSED"),
            ("begins", "double", "double-0", "b"),
            ("ends", "b", "INCORRECT_NUMERICAL"),
            ("finished",),
        ]

    def test_one_that_raises_ends_the_run(self, benchmark_of, problems, tmp_path):
        class Bad(Diary):
            def evaluation_finished(self, trace):
                raise LookupError("terminal is gone")

        bad = Bad()
        dataset = problems.dataset(problems.good("a"), problems.good("b"), root=tmp_path)
        with pytest.raises(LookupError, match="terminal is gone"):
            benchmark_of(dataset, bad).run_all()
        assert len(stored_lines(tmp_path)) == 1
        assert bad.entries[-1] == ("finished",)


class TestSkips:
    def test_failing_reference_is_nobodys_trace(self, benchmark_of, problems):
        broken = problems.definition("broken", reference="def run(x):\n    return 1 / 0")
        diary = Diary()
        dataset = problems.dataset(
            problems.good("a", "broken"),
            problems.good("b"),
            definitions=[broken, problems.definition()],
        )
        benchmark = benchmark_of(dataset, diary)
        found = benchmark.run_all()
        assert statuses(found.traces["double"]) == [("b", "PASSED")]
        assert "broken" not in found.traces
        (entry,) = benchmark.skipped
        assert (entry.kind, entry.solution, entry.workload) == ("reference", "a", "broken-0")
        assert "division by zero" in entry.reason
        assert ("started", 2) in diary.entries
        assert ("skipped", "reference", "a") in diary.entries

    def test_a_timer_that_is_not_there_is_told_once(self, benchmark_of, problems):
        benchmark = benchmark_of(problems.dataset(problems.good("a")), timer="absent")
        with pytest.raises(CapabilityError, match="absent"):
            benchmark.run_all()
        assert benchmark.skipped == ()


def test_runs_within_a_with_statement_share_processes(benchmark_of, problems, executor):
    with benchmark_of(problems.dataset(problems.good("a"))) as benchmark:
        benchmark.run_all()
        benchmark.run_all()
        assert executor.closed == 0
    assert executor.closed == 1
    benchmark.run_all()
    assert executor.closed == 2


class TestErrors:
    def test_no_processes(self, benchmark_of, problems, executor, caplog):
        executor.broken = True
        with pytest.raises(RunnerFatalError, match="no process"):
            benchmark_of(problems.dataset(problems.good("a"))).run_all()
        assert executor.closed == 1

    def test_full_disk_keeps_what_was_done(self, benchmark_of, problems, monkeypatch):
        dataset = problems.dataset(problems.good("a"), problems.good("b"), workloads=2)
        stored = []

        def add(traces):
            if len(stored) == 2:
                raise StorageError("no space left")
            stored.extend(traces)

        benchmark = benchmark_of(dataset)
        monkeypatch.setattr(dataset, "add_traces", add)
        with pytest.raises(StorageError, match="no space left"):
            benchmark.run_all()
        assert [trace.solution for trace in stored] == ["a", "b"]
        monkeypatch.setattr(dataset, "add_traces", stored.extend)
        benchmark.flush()
        assert [trace.solution for trace in stored] == ["a", "b", "a"]


class TestLogLevel:
    def level(self):
        return logging.getLogger("flashinfer_bench.bench").level

    def test_config_stands_over_it(self, problems):
        Benchmark(problems.dataset(), BenchmarkConfig(log_level="DEBUG"), log_level="ERROR")
        assert self.level() == logging.DEBUG

    def test_unknown(self, problems):
        with pytest.raises(ConfigError, match="'LOUD' is not one of"):
            Benchmark(problems.dataset(), log_level="LOUD")


class TestPlugins:
    """Lifecycle hooks of plugins, in a run."""

    @pytest.fixture
    def plugin(self, catalog):
        told = []

        class Plugin:
            veto: Any = None
            provenance: Any = None

            @hookimpl
            def fib_run_started(self, run):
                told.append(("started", run.total))

            @hookimpl
            def fib_evaluated(self, trace):
                assert trace.evaluation is not None
                told.append((trace.solution, trace.evaluation.status.value))

            @hookimpl
            def fib_run_finished(self, run):
                told.append(("finished", len(run.skipped)))

            @hookimpl
            def fib_veto(self, run, measurement):
                assert run.device == "cpu"
                return self.veto and f"{self.veto}: {len(measurement.samples_ms)} samples"

            @hookimpl
            def fib_provenance(self, baseline, solution):
                assert (baseline.definition.name, solution.definition) == ("double", "double")
                return self.provenance

        plugin = Plugin()
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(plugin)
        object.__setattr__(catalog, "hook", manager.hook)
        plugin.told = told  # type: ignore[attr-defined]
        return plugin

    def test_they_are_told_of_the_run(self, benchmark_of, problems, plugin):
        wrong = problems.solution("def run(x): return x", "wrong")
        benchmark_of(problems.dataset(problems.good("a"), wrong)).run_all()
        assert plugin.told == [
            ("started", 2),
            ("a", "PASSED"),
            ("wrong", "INCORRECT_NUMERICAL"),
            ("finished", 0),
        ]

    @pytest.mark.parametrize("told", [None, {"seed": "x"}, {"host": 3, "driver": "1"}, {1: 2}])
    def test_what_cannot_be_recorded_is_passed_over(self, benchmark_of, problems, plugin, told):
        plugin.provenance = told
        (trace,) = benchmark_of(problems.dataset(problems.good("a"))).run_all().traces["double"]
        assert trace.is_successful()
        assert trace.evaluation.provenance.driver is None
        assert isinstance(trace.evaluation.provenance.seed, int)

    def test_provenance(self, benchmark_of, problems, plugin):
        plugin.provenance = {"host": "abc", "job": "7", "device": "cuda:9"}
        (trace,) = benchmark_of(problems.dataset(problems.good("a"))).run_all().traces["double"]
        found = trace.evaluation.provenance
        assert (found.host, found.job) == ("abc", "7")
        assert found.device == "cpu"  # what core says itself stands over it

    def test_a_veto_makes_it_a_runtime_error(self, benchmark_of, problems, plugin):
        plugin.veto = "too quick"
        found = benchmark_of(problems.dataset(problems.good("a"))).run_all()
        (trace,) = found.traces["double"]
        assert trace.evaluation.status.value == "RUNTIME_ERROR"
        assert "too quick: 2 samples" in trace.evaluation.log
        assert trace.evaluation.performance is None

"""An executor that divides runs among devices of its own, and machines with unlike devices."""

from __future__ import annotations

from collections import Counter

import pytest

from fib_tests.serving import add_solution, make_dataset, solution
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.backends import Distributor, make_executor
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.data import Environment, Evaluation, TraceSet
from flashinfer_bench.errors import CapabilityError, RunnerFatalError
from flashinfer_bench.plugins import Catalog, ExecutorSpec

SPEC = ExecutorSpec(
    name="far", devices=("cpu",), distributes=True, factory=f"{__name__}:Far", priority=1000
)


class Runner:
    """A device that gives the same status to all, or is lost after some evaluations."""

    interrupted = False

    def __init__(self, device, hardware, lasts=None):
        self.device, self.environment = device, Environment(hardware=hardware)
        self.left = lasts
        self.closed = 0

    def evaluate_each(
        self, definition, workload, solutions, config, root=None, *, on_start, on_skip
    ):
        for one in solutions:
            if self.interrupted:
                raise RunInterrupted("the run ended")
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise RunnerFatalError(f"{self.device} is gone")
            on_start(one)
            yield (
                one,
                Evaluation(
                    status="RUNTIME_ERROR",
                    environment=self.environment,
                    timestamp="2026-01-02T03:04:05",
                    log=self.device,
                ),
            )

    def interrupt(self):
        self.interrupted = True

    def close(self):
        self.closed += 1


class Far(Distributor):
    devices = made = ()
    closed = 0

    def open(self, trace_set):
        assert self.config.seed is not None
        Far.made = [Runner(*one) for one in self.devices]
        return Far.made

    def obstacle(self, solution, hardware):
        if solution.name == "large" and hardware == "small":
            return "capability", "it does not fit"
        return None

    def close(self):
        Far.closed += 1


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs three workloads of two solutions; it returns the benchmark."""
    root = make_dataset(tmp_path / "dataset")
    add_solution(root, solution("large", language="unheard of"))

    def run(*devices, resume=False):
        monkeypatch.setattr(Far, "devices", devices)
        monkeypatch.setattr(Far, "closed", 0)
        trace_set = TraceSet.from_path(str(root))
        # Of a device that is not here, and with a solution that cannot be built here.
        config = BenchmarkConfig(executor="far", device="cuda")
        benchmark = Benchmark(trace_set, config, catalog=Catalog.of(SPEC))
        benchmark.run_all(resume=resume)
        assert Far.closed == 1
        assert all(one.closed for one in Far.made)
        return benchmark

    def recorded():
        traces = [one for group in TraceSet.from_path(str(root)).traces.values() for one in group]
        return Counter(
            (one.evaluation.environment.hardware, one.solution, one.workload.uuid) for one in traces
        )

    run.recorded = recorded
    return run


def test_each_kind_of_hardware_gets_every_evaluation_once(run):
    benchmark = run(("a", "small"), ("b", "big"), ("c", "big"))
    recorded = run.recorded()
    assert set(recorded.values()) == {1}
    assert Counter((hardware, name) for hardware, name, _ in recorded) == {
        ("small", "first"): 3,
        ("big", "first"): 3,
        ("big", "large"): 3,
    }
    (skipped,) = benchmark.skipped
    assert (skipped.solution, skipped.count, skipped.reason) == ("large", 3, "it does not fit")


def test_others_do_what_a_lost_device_leaves_and_only_its_equals(run):
    run(("a", "big", 1), ("b", "big"), ("c", "small"))
    assert set(run.recorded().values()) == {1}
    assert len(run.recorded()) == 9


def test_a_run_resumes_for_each_hardware(run):
    with pytest.raises(RunnerFatalError, match="a is gone"):
        run(("a", "big", 2), ("b", "small"))
    assert len(run.recorded()) == 2 + 3
    run(("a", "big"), ("b", "small"), resume=True)
    assert len(run.recorded()) == 9
    assert set(run.recorded().values()) == {1}
    run(("c", "other"), resume=True)
    assert len(run.recorded()) == 15


def test_it_starts_no_process_on_this_machine():
    catalog = Catalog.of(SPEC)
    with pytest.raises(CapabilityError, match="'far' divides runs among devices of its own"):
        make_executor(catalog, "cpu", "far")
    with pytest.raises(CapabilityError, match="No executor for device 'cpu'"):
        make_executor(catalog, "cpu")  # not chosen, for all its priority

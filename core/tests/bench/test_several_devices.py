"""Runs over several devices, some of which are lost on the way."""

import threading

import pytest

from flashinfer_bench.bench import BenchmarkConfig, PersistentRunner
from flashinfer_bench.bench.benchmark import RunRecord
from flashinfer_bench.bench.builds import BuildAhead
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateFailed,
    CandidateTimeout,
    Executor,
)
from flashinfer_bench.bench.plan import Plan, WorkItem
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.data import Environment
from flashinfer_bench.errors import RunnerFatalError

CONFIG = BenchmarkConfig(warmup_runs=1, iterations=2, num_trials=1, seed=5, trust="off")
GONE = {
    "fails": CandidateFailed(
        "CUDA error: unspecified launch failure", stage="inputs", kind="RuntimeError", traceback=""
    ),
    "dies": CandidateCrashed("was killed by SIGSEGV", stage="inputs", exit_code=-11),
    "hangs": CandidateTimeout("no answer", stage="inputs"),
}


class Device(Executor):
    """A device of fake candidates that is lost after some sets of inputs have come to it."""

    name = "fake"

    def __init__(self, device, inner, *, lasts=10**9, how="fails"):
        super().__init__(device)
        self.inner, self.left, self.how = inner, lasts, how
        self.lost = threading.Event()
        self.open = self.spawned = 0

    def start(self):
        self.inner.start()

    def spawn(self):
        candidate = self.inner.spawn()
        put_inputs, close = candidate.put_inputs, candidate.close
        self.open += 1
        self.spawned += 1

        def put(*args, **options):
            self.left -= 1
            if self.left < 0:
                self.lost.set()
                raise GONE[self.how]
            put_inputs(*args, **options)

        def close_once():
            if candidate.alive:
                self.open -= 1
            close()

        candidate.put_inputs, candidate.close = put, close_once
        return candidate

    def close(self):
        self.inner.close()


class Told:
    """Keeps what an observer is told."""

    def __init__(self):
        self.statuses = {}
        self.skips = []

    def evaluation_finished(self, trace):
        key = (trace.workload.uuid, trace.solution)
        self.statuses.setdefault(key, []).append(trace.evaluation.status.value)

    def skipped(self, skipped):
        self.skips.append(skipped)

    def __getattr__(self, name):
        return lambda *args: None


@pytest.fixture
def make_device(executor):
    return lambda device, **options: Device(device, type(executor)(device), **options)


@pytest.fixture
def run(problems, catalog):
    """Evaluates solutions on several workloads with one runner for each device."""

    def run(devices, solutions, workloads=6):
        definition = problems.definition()
        dataset = problems.dataset(*solutions)
        items = tuple(
            WorkItem(definition, problems.workload(uuid=f"w{index}"), tuple(solutions))
            for index in range(workloads)
        )
        runners = []
        for device in devices:
            runner = PersistentRunner(device.device, executor=device, catalog=catalog)
            runner.environment = Environment(hardware="a GPU", libs={"torch": "0"})
            runners.append(runner)
        told = Told()
        record = RunRecord(dataset, CONFIG, [told], store=False, hook=catalog.hook)  # type: ignore[list-item]
        nothing = BuildAhead(
            (), devices[0], jobs=1, timeout_s=30, overlap=True, sandbox=Sandbox("off")
        )
        record.carry_out(Plan(items, (), 0), runners, nothing)
        return told

    return run


def everything(solutions, workloads=6):
    return {(f"w{i}", solution.name) for i in range(workloads) for solution in solutions}


@pytest.fixture
def solutions(problems):
    return [problems.good("a"), problems.good("b")]


@pytest.mark.parametrize("how", list(GONE))
@pytest.mark.parametrize("lasts", [0, 2, 5])
def test_a_lost_device_costs_no_evaluation_and_no_verdict(
    run, make_device, solutions, how, lasts, caplog
):
    lost, good = make_device("cuda:0", lasts=lasts, how=how), make_device("cuda:1")
    held_back = good.spawn

    def after_the_loss():
        assert lost.lost.wait(30)
        return held_back()

    good.spawn = after_the_loss
    told = run([lost, good], solutions)
    assert set(told.statuses) == everything(solutions)
    assert {tuple(each) for each in told.statuses.values()} == {("PASSED",)}
    assert told.skips == []
    said = [message for message in caplog.messages if "giving up on" in message]
    assert len(said) == 1
    assert "giving up on cuda:0: cuda:0 no longer works" in said[0]
    assert (lost.open, good.open) == (0, 0)


def test_all_devices_lost_end_the_run(run, make_device, solutions):
    devices = [make_device("cuda:0", lasts=3), make_device("cuda:1", lasts=4)]
    with pytest.raises(RunnerFatalError, match="no longer works") as caught:
        run(devices, solutions)
    assert "--resume" in str(caught.value.hint)


def test_solutions_that_break_are_not_the_device(run, make_device, problems, caplog):
    solutions = [
        problems.solution("def run(x): raise Crash", "crash"),
        problems.solution("def run(x): raise Hang", "hang"),
        problems.solution("def run(x): raise ValueError('CUDA error')", "raises"),
        problems.good("good"),
    ]
    devices = [make_device("cuda:0"), make_device("cuda:1")]
    told = run(devices, solutions, workloads=2)
    found = {name: set(told.statuses[w, name]) for w, name in told.statuses}
    assert found == {
        "crash": {"RUNTIME_ERROR"},
        "hang": {"TIMEOUT"},
        "raises": {"RUNTIME_ERROR"},
        "good": {"PASSED"},
    }
    assert len(told.statuses) == 8
    assert "given up" not in caplog.text
    # One process a workload for the reference and each that breaks; on each device one for "good",
    # and one that sees whether the device still works, however often that is asked.
    assert sum(device.spawned for device in devices) <= 2 * 4 + 2 * 2

"""Clocks that are held during a run: asked for, told in traces, let go of."""

from contextlib import contextmanager

import pytest

from fib_judge import method as judging
from fib_judge.method import VerifiedMeasurement
from fib_judge.watch.lock import LockReport
from flashinfer_bench.bench import BenchmarkConfig, PersistentRunner
from flashinfer_bench.errors import ConfigError

ASKED = BenchmarkConfig.default(
    warmup_runs=1, iterations=4, num_trials=1, sandbox="off", trust="off", lock_clocks_mhz=1200
)


@pytest.fixture
def events(monkeypatch):
    """What is locked and let go of, in order, instead of a GPU."""
    seen = []

    @contextmanager
    def locked(device, request):
        seen.append(f"{device} at {request.sm_mhz}")
        try:
            yield LockReport(request, problem="no rights")
        finally:
            seen.append(f"{device} free")

    monkeypatch.setattr(judging, "locked_clocks", locked)
    monkeypatch.setattr(judging, "restore_clocks", lambda device: seen.append(f"{device} restored"))
    return seen


def test_nothing_is_held_unasked(events):
    with VerifiedMeasurement("cuda:0").running(BenchmarkConfig()):
        assert events == ["cuda:0 restored"]  # what a killed run has left


def test_a_run_holds_them_and_says_so_in_every_trace(events, problems, executor, catalog):
    problem = problems.definition(), problems.workload(), [problems.good()]
    runner = PersistentRunner("cuda:0", executor=executor, catalog=catalog)
    runner.environment = PersistentRunner("cpu").environment
    method = runner.measurement(ASKED)
    with runner, method.running(ASKED):
        (held,) = runner.run_workload(*problem, ASKED).values()
        assert events == ["cuda:0 at 1200"]
    assert events[1:] == ["cuda:0 free"]
    told = held.provenance.timing["clock_lock"]
    assert told == {"locked": False, "sm_mhz": 1200, "problem": "no rights"}
    with pytest.raises(KeyboardInterrupt), method.running(ASKED):
        raise KeyboardInterrupt
    assert events[-1] == "cuda:0 free"
    (free,) = runner.run_workload(*problem, ASKED).values()
    assert "clock_lock" not in free.provenance.timing


def test_a_cpu_has_no_such_clocks(events):
    with (
        pytest.raises(ConfigError, match="lock_clocks_mhz=1200: only the clocks of NVIDIA GPUs"),
        VerifiedMeasurement("cpu").running(ASKED),
    ):
        raise AssertionError("not reached")
    assert events == []


@pytest.mark.parametrize("value", [0, -5, 1.5, "fast"])
def test_only_whole_numbers_of_mhz(value):
    with pytest.raises(ConfigError, match="lock_clocks_mhz"):
        BenchmarkConfig(lock_clocks_mhz=value)

"""Clocks that are held during a run: asked for, told in traces, let go of."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench import clocks
from flashinfer_bench.bench.clocks import locked_runners
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.runner import PersistentRunner
from flashinfer_bench.bench.watch.lock import ClockRequest, LockReport
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {"warmup_runs": 1, "iterations": 4, "num_trials": 1, "sandbox": "off"}


class _Runner:
    def __init__(self, device: str) -> None:
        self.device = device
        self.clock_lock: Any = None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is locked and let go of, in order, instead of a GPU."""
    from contextlib import contextmanager

    events: list[str] = []

    @contextmanager
    def locked(device: str, request: ClockRequest) -> Any:
        events.append(f"{device} at {request.sm_mhz}")
        try:
            yield LockReport(request, locked=True, undone=False)
        finally:
            events.append(f"{device} free")

    monkeypatch.setattr(clocks, "locked_clocks", locked)
    return events


class TestLockedRunners:
    def test_nothing_is_done_unasked(self, held: list[str]) -> None:
        runner = _Runner("cuda:0")
        with locked_runners([runner], None):  # type: ignore[list-item]
            assert runner.clock_lock is None
        assert held == []

    def test_each_device_is_held_for_as_long(self, held: list[str]) -> None:
        runners = [_Runner("cuda:0"), _Runner("cuda:1")]
        with locked_runners(runners, 1200):  # type: ignore[arg-type]
            assert held == ["cuda:0 at 1200", "cuda:1 at 1200"]
            assert all(runner.clock_lock.locked for runner in runners)
        assert held[2:] == ["cuda:1 free", "cuda:0 free"]
        assert all(runner.clock_lock is None for runner in runners)

    def test_let_go_of_when_the_run_fails(self, held: list[str]) -> None:
        runner = _Runner("cuda:0")
        with (
            pytest.raises(KeyboardInterrupt),
            locked_runners([runner], 1200),  # type: ignore[list-item]
        ):
            raise KeyboardInterrupt
        assert held[-1] == "cuda:0 free"
        assert runner.clock_lock is None

    def test_a_cpu_has_no_such_clocks(self, held: list[str]) -> None:
        with (
            pytest.raises(ConfigError, match="lock_clocks_mhz=1200: only clocks of NVIDIA GPUs"),
            locked_runners([_Runner("cpu")], 1200),  # type: ignore[list-item]
        ):
            raise AssertionError("not reached")
        assert held == []


class TestSetting:
    @pytest.mark.parametrize("value", [0, -5, 1.5, "fast"])
    def test_only_whole_numbers_of_mhz(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="lock_clocks_mhz"):
            BenchmarkConfig(lock_clocks_mhz=value)

    def test_off_by_default(self) -> None:
        assert BenchmarkConfig.default().lock_clocks_mhz is None

    def test_it_is_told_in_every_trace(self, problems: Any, executor: Any, catalog: Any) -> None:
        config = BenchmarkConfig.default(**SETTINGS)
        runner = PersistentRunner("cpu", executor=executor, catalog=catalog)
        request = ClockRequest(sm_mhz=1200)
        runner.clock_lock = LockReport(request, problem="no rights")
        with runner:
            found = runner.run_workload(
                problems.definition(), problems.workload(), [problems.good()], config
            )
        (evaluation,) = found.values()
        lock = evaluation.provenance.timing["clock_lock"]
        assert lock == {"locked": False, "sm_mhz": 1200, "problem": "no rights"}


def test_by_the_command_line(problems: Any, tmp_path: Path) -> None:
    """The CPU is refused, whatever else is asked for, and nothing is written."""
    import subprocess

    root = tmp_path / "dataset"
    dataset = problems.dataset(problems.good("good"), root=None)
    (root / "definitions" / "op").mkdir(parents=True)
    (root / "solutions" / "a" / "op" / "double").mkdir(parents=True)
    (root / "workloads" / "op").mkdir(parents=True)
    (root / "definitions" / "op" / "double.json").write_text(
        dataset.definitions["double"].model_dump_json()
    )
    (root / "solutions" / "a" / "op" / "double" / "good.json").write_text(
        dataset.solutions["double"][0].model_dump_json()
    )
    line = {
        "definition": "double",
        "workload": {"axes": {"n": 4}, "inputs": {"x": {"type": "random"}}, "uuid": "w"},
        "solution": None,
        "evaluation": None,
    }
    (root / "workloads" / "op" / "double.jsonl").write_text(json.dumps(line) + "\n")
    command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(root)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--lock-clocks", "1200"],
        capture_output=True,
        text=True,
        env=os.environ | {"FIB_CACHE_PATH": str(tmp_path / "cache")},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "only clocks of NVIDIA GPUs can be held" in done.stderr
    assert not (root / "traces").exists()

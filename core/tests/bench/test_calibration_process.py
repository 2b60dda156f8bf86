"""Measuring for real: the child process, its protocol, and what comes of a broken one."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench.calibration import Ceilings, calibrate, cpu
from flashinfer_bench.bench.calibration.products import product
from flashinfer_bench.bench.locks import DeviceLock
from flashinfer_bench.errors import CapabilityError, RunnerError

if TYPE_CHECKING:
    from pathlib import Path

# Children that stand for the one that measures; they get the device as their first argument.
CHILDREN = {
    "good": "print(json.dumps({'share': 0.5})); print('noise'); print(json.dumps(GOOD))",
    "no_figures": "print(json.dumps({'share': 1.0}))",
    "nonsense": "GOOD['ceilings']['call_ms'] = -1; print(json.dumps(GOOD))",
    "not_an_object": "print(json.dumps(['ceilings']))",
    "raises": "raise RuntimeError('the card has gone: ' + arguments[0])",
    "silent": "sys.exit(3)",
    "hangs": "time.sleep(600)",
    "killed": "os.kill(os.getpid(), 9)",
}
HEADER = "import json, os, sys, time\nGOOD = {good!r}\ndef main(arguments):\n    {body}\n"
FOUND = Ceilings("cpu", "A CPU", {4096: 1e9}, {"float32": 1e9}, 1e-3, "1", "now")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts another program in the place of the child."""

    def use(name: str) -> None:
        body = HEADER.format(good={"ceilings": FOUND.to_json()}, body=CHILDREN[name])
        (tmp_path / f"child_that_{name}.py").write_text(body)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(
            "flashinfer_bench.bench.calibration.measure._MODULE", f"child_that_{name}"
        )

    return use


def test_figures_and_progress_come_back(child: Any) -> None:
    child("good")
    told: list[float] = []
    assert calibrate("cpu", on_progress=told.append) == FOUND
    assert told == [0.5]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no_figures", CapabilityError, "exit code 0"),
        ("not_an_object", CapabilityError, "cpu cannot be measured"),
        ("nonsense", RunnerError, "call_ms has a value that is not positive"),
        ("raises", CapabilityError, "the card has gone: cpu"),
        ("silent", CapabilityError, "exit code 3"),
        ("killed", RunnerError, "was killed, or did not end in"),
    ],
)
def test_a_child_that_fails_is_told(
    child: Any, name: str, error: type[Exception], words: str
) -> None:
    child(name)
    with pytest.raises(error, match=words):
        calibrate("cpu")


def test_a_child_that_hangs_is_killed(child: Any) -> None:
    child("hangs")
    with pytest.raises(RunnerError, match=r"did not end in 0\.5 s"):
        calibrate("cpu", timeout_s=0.5)


def test_an_interruption_ends_the_child(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child("hangs")
    started: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str], on_progress: object) -> dict[str, Any]:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr("flashinfer_bench.bench.calibration.measure._follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate("cpu")
    assert started[0].returncode == -9


def test_the_device_is_locked_meanwhile(child: Any) -> None:
    child("good")
    seen: list[bool] = []

    def look(share: float) -> None:
        with DeviceLock("cpu").held(lambda: True) as held:
            seen.append(held)

    calibrate("cpu", on_progress=look)
    assert seen == [False]
    look(1.0)
    assert seen == [False, True]


def test_a_device_that_is_not_there() -> None:
    import torch

    if torch.cuda.device_count() > 77:
        pytest.skip("this machine has more than 77 GPUs")
    with pytest.raises(CapabilityError, match="cuda:77"):
        calibrate("cuda:77")


@pytest.fixture(scope="module")
def found() -> Ceilings:
    """Measured for real in one short pass, so that figures are too low; but all are there."""
    return calibrate("cpu", budget_s=0.1)


class TestForReal:
    def test_all_sizes_and_types_are_measured(self, found: Ceilings) -> None:
        assert found.device == "cpu"
        # How far up it goes depends on the memory that is free at that moment.
        sizes = sorted(found.bytes_per_s)
        assert sizes == [cpu.ladder()[0] << step for step in range(len(sizes))]
        assert len(sizes) >= 3
        assert "float32" in found.flops_per_s
        assert set(found.flops_per_s) <= set(cpu.DTYPES)

    def test_figures_are_of_this_world(self, found: Ceilings) -> None:
        assert all(1e6 < rate < 1e14 for rate in found.bytes_per_s.values())
        assert all(1e6 < rate < 1e16 for rate in found.flops_per_s.values())
        assert 1e-6 < found.call_ms < 1.0

    def test_they_are_stored_under_this_machine(self, found: Ceilings) -> None:
        from flashinfer_bench.bench.calibration import load_ceilings, store_ceilings
        from flashinfer_bench.tensors import hardware_from_device

        store_ceilings(found)
        assert load_ceilings("cpu", hardware_from_device("cpu")) == found

    def test_one_short_look_is_not_enough_to_settle(self, found: Ceilings) -> None:
        assert not found.settled


class TestCpu:
    def test_the_ladder_doubles_and_ends_beyond_the_caches(self) -> None:
        sizes = cpu.ladder()
        assert sizes[0] == 16 << 10
        assert all(b == 2 * a for a, b in itertools.pairwise(sizes))
        assert sizes[-1] <= 2 << 30

    @pytest.mark.parametrize(("free", "largest"), [(1 << 20, 256 << 10), (0, 64 << 10)])
    def test_little_memory_shortens_it(
        self, free: int, largest: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cpu, "_usable_memory", lambda: free)
        assert cpu.ladder()[-1] == largest

    def test_caches_are_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for index, size in enumerate(["48K", "2M", "nonsense", "", "8M"]):
            (tmp_path / f"index{index}").mkdir()
            (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
        monkeypatch.setattr(cpu, "_CACHES", tmp_path)
        assert cpu.last_level_cache() == 8 << 20
        monkeypatch.setattr(cpu, "_CACHES", tmp_path / "absent")
        assert cpu.last_level_cache() == 32 << 20

    @pytest.mark.parametrize(("limit", "found"), [("1048576\n", 1 << 20), ("max\n", None)])
    def test_a_memory_limit_counts(
        self, limit: str, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "memory.max").write_text(limit)
        monkeypatch.setattr(cpu, "_MEMORY_LIMIT", tmp_path / "memory.max")
        assert (cpu._usable_memory() == found) if found else (cpu._usable_memory() > 1 << 20)

    def test_a_product_of_an_unknown_type(self) -> None:
        with pytest.raises(NotImplementedError, match="float3"):
            product("cpu", "float3", 8)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    def test_a_product_multiplies(self, dtype: str) -> None:
        import torch

        result = product("cpu", dtype, 16)()
        assert isinstance(result, torch.Tensor)
        assert result.shape == (16, 16)


def test_loading_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from flashinfer_bench.bench.calibration import load_ceilings\n"
        "assert load_ceilings('cpu', 'nothing of this name') is None\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_child_keeps_stdout_to_itself() -> None:
    code = (
        "from flashinfer_bench.bench.calibration.child import _take_stdout\n"
        "import os\n"
        "say = _take_stdout()\n"
        "print('from Python'); os.write(1, b'from a library\\n'); say({'share': 0.1})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"share": 0.1}
    assert set(done.stderr.split("\n")) >= {"from Python", "from a library"}

"""``fib timers check`` without the command: what it measures, of timers that lie in known ways."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.timing import Timer, known_work
from flashinfer_bench.bench.timing.check import (
    DEVICE_CLOCK,
    LENGTHS_US,
    CheckReport,
    KnownLength,
    Noise,
    TimerReport,
    check_timers,
    disagreements,
    smallest_difference,
)
from flashinfer_bench.bench.timing.known_work import CpuWork, CudaWork, KnownWork, work_for
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.errors import CapabilityError, TimingError

if TYPE_CHECKING:
    from collections.abc import Callable


class Device(KnownWork):
    """A device whose work takes exactly as long as it should, in microseconds of `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0
        self.gone = False

    def _advance(self, microseconds: float) -> None:
        self.calls += 1
        self.now += microseconds

    def spin(self, microseconds: float) -> Callable[[], object]:
        return lambda: self._advance(microseconds)

    def steady(self) -> Callable[[], object]:
        return lambda: self._advance(1000.0)

    def touch(self) -> None:
        if self.gone:
            raise RuntimeError("CUDA error: device lost\nand more")


class Stopwatch(Timer):
    """Tells `factor` times what has passed on the device, and `plus` microseconds."""

    version = "7"

    def __init__(
        self, device: Device, name: str = "watch", factor: float = 1.0, plus: float = 0.0
    ) -> None:
        self.name = name
        self._device, self._factor, self._plus = device, factor, plus
        self.asked = 0
        self.drift = 0.0

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        self.asked += 1
        begun = self._device.now
        result = function(*arguments)
        passed = (self._device.now - begun) * (1.0 + self.drift * self.asked)
        return (passed * self._factor + self._plus) / 1e3, result

    def take_notes(self) -> list[str]:
        return ["ticks"]


class Failing(Stopwatch):
    def time_call(self, *given: Any, **options: Any) -> tuple[float, Any]:
        raise TimingError("the clock has stopped", hint="wind it up")


class Odd(Stopwatch):
    def time_call(self, *given: Any, **options: Any) -> tuple[float, Any]:
        raise KeyError("ticks\nand tocks")


@pytest.fixture
def device() -> Device:
    return Device()


def check(device: Device, *timers: Timer, **options: Any) -> CheckReport:
    return check_timers(timers, "cuda:0", device, alive=device.touch, **options)


class TestOneTimer:
    def test_a_right_one(self, device: Device) -> None:
        report = check(device, Stopwatch(device))
        (one,) = report.timers
        assert report.passed
        assert (one.name, one.version, one.notes) == ("watch", "7", ("ticks",))
        assert [known.length_us for known in one.lengths] == list(LENGTHS_US)
        for known in one.lengths:
            assert known.deviation == pytest.approx(0.0)
        assert one.noise is not None
        assert (one.overhead_us, one.noise.worst) == (0.0, 0.0)

    def test_overhead_is_what_a_call_of_nothing_takes(self, device: Device) -> None:
        (one,) = check(device, Stopwatch(device, plus=2.5)).timers
        assert one.overhead_us == pytest.approx(2.5)
        assert one.lengths[1].found_us == pytest.approx(102.5)

    def test_resolution_is_the_smallest_difference_seen(self, device: Device) -> None:
        (one,) = check(device, Stopwatch(device)).timers
        assert one.resolution_us == pytest.approx(10.0)  # between nothing and the shortest work

    def test_noise_is_a_difference_between_medians_of_the_same(self, device: Device) -> None:
        timer = Stopwatch(device)
        timer.drift = 1e-4
        (one,) = check(device, timer).timers
        assert one.noise is not None
        # In the order A B B A both series are in the middle of the same drift.
        assert one.noise.worst < 1e-3
        assert 0 < one.noise.spread < 0.1

    def test_a_timer_that_repeats_is_asked_less_often(self, device: Device) -> None:
        many, few = Stopwatch(device), Stopwatch(device, "few")
        few.repeats = True
        assert check(device, many, few).passed
        assert few.asked * 5 < many.asked

    def test_progress_is_told(self, device: Device) -> None:
        told: list[str] = []
        check(device, Stopwatch(device), Stopwatch(device, "other"), on_progress=told.append)
        assert told == ["watch", "other"]

    def test_a_clock_that_stands_still(self, device: Device) -> None:
        report = check(device, Stopwatch(device, factor=0.0))
        assert not report.passed
        assert "measured as 0.0 ms" in str(report.timers[0].error)


class TestAgreement:
    @pytest.mark.parametrize("factor", [1.06, 0.94])
    def test_a_clock_that_is_off(self, device: Device, factor: float) -> None:
        report = check(device, Stopwatch(device), Stopwatch(device, "off", factor))
        found = {(one.first, one.second, one.length_us) for one in report.disagreements}
        assert found == {(first, "off", u) for u in LENGTHS_US for first in (DEVICE_CLOCK, "watch")}
        assert not report.passed
        assert report.disagreements[0].share == pytest.approx(0.06)

    def test_less_than_the_tolerance(self, device: Device) -> None:
        assert check(device, Stopwatch(device, factor=1.04), Stopwatch(device, "b")).passed

    def test_overhead_counts_only_where_it_should_not_be_seen(self, device: Device) -> None:
        """2 µs are 20 % of the shortest work, which says nothing, and 2 % of the next."""
        assert check(device, Stopwatch(device, plus=2.0)).passed
        assert check(device, Stopwatch(device, plus=20.0)).passed  # tells only the longest apart

    def test_work_that_is_not_known_well_is_not_judged(self) -> None:
        lengths = tuple(KnownLength(u, u + 2.0) for u in LENGTHS_US)
        report = TimerReport("t", "1", lengths=lengths)
        assert [one.length_us for one in disagreements([report])] == [10.0]
        assert disagreements([report], grain_us=1.0) == []

    def test_two_that_agree_with_the_work_may_differ_from_one_another(self) -> None:
        slow, fast = (
            TimerReport(name, "1", lengths=tuple(KnownLength(u, u * by) for u in LENGTHS_US))
            for name, by in (("slow", 1.04), ("fast", 0.96))
        )
        found = disagreements([slow, fast], grain_us=1.0)
        assert {(one.first, one.second) for one in found} == {("slow", "fast")}

    def test_one_that_failed_is_left_out(self) -> None:
        failed = TimerReport("f", "1", error="no")
        assert disagreements([failed]) == []
        assert not CheckReport("cpu", (failed,)).passed
        assert CheckReport("cpu").passed


class TestFailures:
    def test_one_does_not_keep_the_others_from_being_checked(self, device: Device) -> None:
        report = check(device, Failing(device, "bad"), Odd(device, "odd"), Stopwatch(device))
        errors = {one.name: one.error for one in report.timers}
        assert errors["bad"] == "the clock has stopped"
        assert str(errors["odd"]).startswith("KeyError: ")
        assert errors["watch"] is None
        assert not report.passed

    def test_a_device_that_has_gone_ends_it(self, device: Device) -> None:
        device.gone = True
        with pytest.raises(TimingError, match="cuda:0 does not answer any more") as caught:
            check(device, Failing(device, "bad"), Stopwatch(device))
        assert "CUDA error: device lost" in caught.value.message
        assert "and more" not in caught.value.message
        assert "nvidia-smi" in str(caught.value.hint)

    def test_ctrl_c_comes_through(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*given: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(Stopwatch, "time_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(device, Stopwatch(device))


class TestSmallestDifference:
    def test_examples(self) -> None:
        assert smallest_difference([3.0, 1.0, 1.5, 1.0]) == 0.5
        assert smallest_difference([2.0, 2.0]) is None
        assert smallest_difference([2.0]) is None
        assert smallest_difference([100.0, 100.0 + 1e-12]) is None

    @given(st.lists(st.integers(0, 10_000), min_size=1), st.floats(1e-3, 1e3))
    def test_of_a_clock_with_ticks(self, ticks: list[int], tick: float) -> None:
        found = smallest_difference([count * tick for count in ticks])
        if len(set(ticks)) == 1:
            assert found is None
        else:
            assert found is not None
            assert found >= 0.999 * tick


class TestOnThisMachine:
    """Real clocks and real work; the machine may be busy."""

    def test_the_wall_clock(self) -> None:
        report = check_timers([WallClockTimer()], "cpu", CpuWork())
        (one,) = report.timers
        assert one.error is None
        assert one.noise is not None
        assert all(known.found_us > 0.95 * known.length_us for known in one.lengths)
        assert 0 < one.overhead_us < 10.0
        assert one.resolution_us is not None
        assert one.removed_us > 0

    def test_a_spin_is_not_too_short(self) -> None:
        work = CpuWork().spin(300.0)
        begun = time.perf_counter_ns()
        work()
        assert time.perf_counter_ns() - begun >= 300_000

    def test_steady_work_is_calibrated(self) -> None:
        work = CpuWork().steady()
        fastest = min(self._seconds(work) for _ in range(20))
        assert 1e-4 < fastest < 1e-2

    @staticmethod
    def _seconds(work: Callable[[], object]) -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


class Driver:
    """Stands for the CUDA driver's library."""

    def __init__(self, compiles: int = 0, launches: int = 0) -> None:
        self.compiles, self.launches = compiles, launches
        self.launched: list[tuple[str, int]] = []
        self.names: list[str] = []

    def cuModuleLoadData(self, module: Any, ptx: bytes) -> int:
        assert ptx.endswith(b"\0")
        return self.compiles

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names.append(name.decode())
        function._obj.value = len(self.names)
        return 0

    def cuLaunchKernel(self, function: Any, *sizes_and_more: Any) -> int:
        count = ctypes.c_uint64.from_address(sizes_and_more[8][0]).value
        assert sizes_and_more[:7] == (1, 1, 1, 1, 1, 1, 0)
        assert sizes_and_more[7].value == 7
        self.launched.append((self.names[function.value - 1], count))
        return self.launches


class TestCudaWork:
    @pytest.fixture
    def driver(self, monkeypatch: pytest.MonkeyPatch) -> Driver:
        import contextlib

        torch = pytest.importorskip("torch", reason="torch is not installed")
        driver = Driver()
        cuda = types.SimpleNamespace(
            device=lambda device: contextlib.nullcontext(),
            synchronize=lambda: None,
            current_stream=lambda device: types.SimpleNamespace(cuda_stream=7),
        )
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setattr(known_work, "cuda_driver", lambda: driver)
        return driver

    def test_kernels_are_launched_with_their_lengths(self, driver: Driver) -> None:
        work = work_for("cuda:1")
        assert isinstance(work, CudaWork)
        short, long = work.spin(10.0), work.spin(1000.0)
        for launch in (short, long, short):
            launch()
        assert driver.launched == [("spin", 10_000), ("spin", 1_000_000), ("spin", 10_000)]

    def test_steady_work_is_calibrated(self, driver: Driver) -> None:
        work_for("cuda:0").steady()()
        assert {name for name, _ in driver.launched} == {"steps"}
        assert driver.launched[0][1] == 10_000
        assert driver.launched[-1][1] >= 1

    def test_a_driver_that_refuses(self, driver: Driver) -> None:
        work = work_for("cuda:0")
        driver.launches = 719
        with pytest.raises(CapabilityError, match="cuda:0: the driver refused a kernel: error 719"):
            work.spin(1.0)()
        driver.compiles = 222
        with pytest.raises(CapabilityError, match="cannot compile a kernel: error 222"):
            work_for("cuda:0")

    def test_no_driver(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known_work, "cuda_driver", lambda: None)
        with pytest.raises(CapabilityError, match=r"libcuda\.so\.1"):
            work_for("cuda:0")


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernels_assemble(architecture: str, tmp_path: Path) -> None:
    """By the assembler that comes with triton, or the toolkit's; no device is needed."""
    assembler = shutil.which("ptxas")
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        assembler = str(Path(spec.origin).parent / "backends/nvidia/bin/ptxas")
    if assembler is None or not Path(assembler).exists():
        pytest.skip("neither triton nor the CUDA toolkit is installed: there is no ptxas")
    source = tmp_path / "kernels.ptx"
    source.write_bytes(known_work._PTX.rstrip(b"\0"))
    command = [assembler, f"--gpu-name={architecture}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_other_devices_have_no_work() -> None:
    with pytest.raises(CapabilityError, match="for 'abacus'; use cpu or cuda:N"):
        work_for("abacus")


def test_reports_compare() -> None:
    assert Noise(0.1, 0.0, 0.0) == Noise(0.1, 0.0, 0.0)
    assert KnownLength(100.0, 105.0).deviation == pytest.approx(0.05)

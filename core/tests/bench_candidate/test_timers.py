from __future__ import annotations

import gc
import time
import types
from typing import ClassVar

import pytest

from flashinfer_bench.bench.candidate.start import make_timers
from flashinfer_bench.bench.timing import Timer, probes, time_runnable
from flashinfer_bench.bench.timing.cuda_event import CudaEventTimer
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.errors import CapabilityError, TimingError
from flashinfer_bench.plugins import Catalog, TimerSpec


def measure(timer: Timer, function, arguments=lambda index: (), *, warmup=2, iterations=5):
    return timer.measure(function, arguments, warmup=warmup, iterations=iterations, device="cpu")


class Clock:
    """Stands for `time.perf_counter_ns`: each reading is a microsecond after the last."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


class TestWallClock:
    def test_one_sample_per_timed_call(self):
        calls = []
        samples = measure(WallClockTimer(), lambda index: calls.append(index), lambda i: (i,))
        assert calls == [0, 1, 2, 3, 4, 5, 6]
        assert len(samples) == 5
        assert all(sample >= 0 for sample in samples)

    def test_no_warmup(self):
        assert len(measure(WallClockTimer(), lambda: None, warmup=0, iterations=1)) == 1

    def test_time_asleep_counts(self):
        samples = measure(WallClockTimer(), lambda: time.sleep(0.01), warmup=0, iterations=2)
        assert min(samples) >= 10.0

    def test_making_arguments_and_freeing_results_do_not_count(self, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(time, "perf_counter_ns", clock)
        timer = WallClockTimer()

        class Result:
            def __del__(self):
                clock.now += 10**9

        def arguments(index):
            clock.now += 10**9
            return ()

        assert measure(timer, Result, arguments) == [0.001] * 5

    def test_the_clock_is_the_one_from_before(self, monkeypatch):
        """A solution may replace `time.perf_counter_ns`; that comes too late."""
        timer = WallClockTimer()
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
        assert min(measure(timer, lambda: time.sleep(0.001))) >= 1.0

    @pytest.mark.parametrize("enabled", [True, False])
    def test_the_collector_pauses_and_is_left_as_it_was(self, enabled):
        seen = []
        before = gc.isenabled()
        try:
            gc.enable() if enabled else gc.disable()
            measure(WallClockTimer(), lambda: seen.append(gc.isenabled()), warmup=0)
            assert gc.isenabled() == enabled
        finally:
            gc.enable() if before else gc.disable()
        assert not any(seen)

    def test_an_exception_comes_through(self):
        with pytest.raises(ZeroDivisionError):
            measure(WallClockTimer(), lambda: 1 / 0, warmup=0)
        assert gc.isenabled()


class FakeEvent:
    log: ClassVar[list[object]] = []

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        self.log.append("record")

    def elapsed_time(self, stop):
        return 0.25


class TestCudaEvents:
    """The order of events and calls; the numbers are tested on a GPU."""

    @pytest.fixture
    def torch_cuda(self, monkeypatch):
        import contextlib

        import torch

        FakeEvent.log = []
        fake = types.SimpleNamespace(
            Event=FakeEvent,
            synchronize=lambda: FakeEvent.log.append("synchronize"),
            device=lambda device: contextlib.nullcontext(FakeEvent.log.append(device)),
        )
        monkeypatch.setattr(torch, "cuda", fake)
        return fake

    def time(self, timer):
        return timer.measure(
            lambda index: FakeEvent.log.append(index),
            lambda index: (index,),
            warmup=1,
            iterations=2,
            device="cuda:1",
        )

    def test_events_enclose_each_call(self, torch_cuda):
        assert self.time(CudaEventTimer()) == [0.25, 0.25]
        around = ["record", 1, "record", "record", 2, "record"]
        assert FakeEvent.log == ["cuda:1", 0, "synchronize", *around, "synchronize"]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
    def test_times_that_make_no_sense(self, torch_cuda, monkeypatch, value):
        monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, stop: value)
        with pytest.raises(TimingError):
            self.time(CudaEventTimer())

    def test_the_event_functions_are_those_from_before(self, torch_cuda, monkeypatch):
        timer = CudaEventTimer()
        monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, stop: 0.0)
        torch_cuda.synchronize = lambda: None
        assert self.time(timer) == [0.25, 0.25]
        assert FakeEvent.log.count("synchronize") == 2


class TestProbe:
    @pytest.fixture
    def torch_at(self, monkeypatch, tmp_path):
        """Make it seem that torch is installed with that ``version.py``."""

        def place(text):
            (tmp_path / "version.py").write_text(text)
            spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
            monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: spec)

        return place

    def test_no_torch(self, monkeypatch):
        monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None)
        assert "not installed" in probes.cuda_event().reason

    def test_torch_without_cuda(self, torch_at):
        torch_at("__version__ = '2.9'\ncuda: Optional[str] = None\n")
        assert not probes.cuda_event()

    def test_no_version_file(self, torch_at, tmp_path):
        torch_at("")
        (tmp_path / "version.py").unlink()
        assert not probes.cuda_event()

    @pytest.mark.parametrize("line", ["cuda: Optional[str] = '12.8'", 'cuda = "12.8"'])
    def test_torch_with_cuda(self, torch_at, monkeypatch, line):
        torch_at(f"__version__ = '2.9'\n{line}\n")
        monkeypatch.setattr(probes, "_device_count", lambda: 2)
        answer = probes.cuda_event()
        assert answer
        assert answer.reason == "CUDA 12.8, 2 devices"

    def test_no_device(self, torch_at, monkeypatch):
        torch_at("cuda = '12.8'\n")
        monkeypatch.setattr(probes, "_device_count", lambda: 0)
        assert "nvidia-smi" in probes.cuda_event().remedy

    def test_no_driver(self, monkeypatch):
        def missing(name):
            raise OSError(name)

        monkeypatch.setattr(probes.ctypes, "CDLL", missing)
        assert probes._device_count() == 0


class TestTimeRunnable:
    def test_median_in_milliseconds(self):
        calls = []

        def function(left, right):
            calls.append((left, right))
            time.sleep(0.002)

        latency = time_runnable(function, [1, 2], 1, 3, "cpu")
        assert 2.0 <= latency < 1000.0
        assert calls == [(1, 2)] * 4

    @pytest.mark.parametrize(("warmup", "iterations"), [(-1, 1), (0, 0)])
    def test_impossible_counts(self, warmup, iterations):
        with pytest.raises(ValueError, match="warmup"):
            time_runnable(lambda: None, [], warmup, iterations, "cpu")

    def test_no_timer_for_the_device(self):
        with pytest.raises(CapabilityError):
            time_runnable(lambda: None, [], 1, 1, "abacus")


class TestMakeTimers:
    def test_of_core(self):
        timers = make_timers("cpu")
        assert isinstance(timers["cpu"], WallClockTimer)
        assert "cuda_event" not in timers

    def test_the_index_of_the_device_does_not_matter(self):
        assert isinstance(make_timers("cuda:3")["cuda_event"], CudaEventTimer)

    def test_one_that_is_broken_does_not_keep_the_others_out(self, monkeypatch):
        catalog = Catalog.of(
            TimerSpec(name="gone", devices=("cpu",), factory="no_such_module:Timer"),
            TimerSpec(
                name="good", devices=("cpu",), factory=f"{WallClockTimer.__module__}:WallClockTimer"
            ),
        )
        monkeypatch.setattr("flashinfer_bench.plugins.default_catalog", lambda: catalog)
        timers = make_timers("cpu")
        assert isinstance(timers["gone"], Exception)
        assert isinstance(timers["good"], WallClockTimer)

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
import types
from typing import ClassVar

import pytest

from flashinfer_bench.bench.candidate.start import make_timers
from flashinfer_bench.bench.timing import (
    Timer,
    context_event,
    cuda_event,
    hold,
    probes,
    time_runnable,
)
from flashinfer_bench.bench.timing.cuda_event import CudaEventTimer
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.errors import CapabilityError, TimingError
from flashinfer_bench.plugins import Catalog, TimerSpec


def measure(timer: Timer, function, arguments=lambda index: (), *, warmup=2, iterations=5):
    return timer.measure(function, arguments, warmup=warmup, iterations=iterations, device="cpu")


class Clock:
    """Stands for `time.perf_counter_ns`: each reading is a microsecond after the last.

    So two readings in a row cost a microsecond, which the wall clock takes out of its samples.
    """

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
            def __init__(self):
                clock.now += 500

            def __del__(self):
                clock.now += 10**9

        def arguments(index):
            clock.now += 10**9
            return ()

        assert measure(timer, Result, arguments) == [0.0005] * 5

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

    def test_one_call_and_its_result(self):
        timer = WallClockTimer()
        sample, result = timer.time_call(lambda *given: given, (1, "two"), device="cpu")
        assert (sample >= 0, result) == (True, (1, "two"))
        assert timer.take_notes() == []

    def test_a_result_lives_until_its_sample_is_taken_and_no_longer(self):
        alive = []

        class Result:
            def __init__(self):
                assert not alive, "the one before is still there"
                alive.append(self.__class__)

            def __del__(self):
                alive.pop()

        assert len(measure(WallClockTimer(), Result)) == 5
        assert not alive

    def test_one_call_leaves_the_collector_alone(self):
        seen = []
        WallClockTimer().time_call(lambda: seen.append(gc.isenabled()), (), device="cpu")
        assert seen == [gc.isenabled()]


class FakeEvent:
    """Tells what is done with it; the second of two is `later` milliseconds after the first."""

    log: ClassVar[list[object]] = []
    later = 0.25
    cuda_event = 4096

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self, stream=None):
        self.log.append(("record", stream.name) if stream else "record")

    def synchronize(self):
        self.log.append("await")

    def elapsed_time(self, stop):
        return stop.later

    def query(self):
        self.log.append("is it over?")
        return True


class FakeDriver:
    """What `ctypes` would find in the driver's library."""

    def __init__(self, launches=0, records=0):
        self.launches, self.records = launches, records
        self.held, self.tickets = [], []
        self.word = ctypes.c_uint32(77)
        self.memory = 0

    def cuMemHostAlloc(self, host, size, flags):
        assert (size, flags) == (4, 3)
        host._obj.value = ctypes.addressof(self.word)
        return self.memory

    def cuMemHostGetDevicePointer_v2(self, seen, host, flags):
        assert host.value == ctypes.addressof(self.word)
        seen._obj.value = 2**40
        return 0

    def cuModuleLoadData(self, module, ptx):
        assert ptx.endswith(b"\0")
        return 0

    def cuModuleGetFunction(self, function, module, name):
        assert name == b"hold"
        return 0

    def cuLaunchKernel(self, function, *size_and_more):
        self.held.append(size_and_more[:7])
        values = size_and_more[8]
        word, limit = (ctypes.c_uint64.from_address(values[place]).value for place in (0, 2))
        assert (word, limit) == (2**40, 1_000_000)
        self.tickets.append(ctypes.c_uint32.from_address(values[1]).value)
        FakeEvent.log.append("hold")
        return self.launches

    def cuCtxGetCurrent(self, context):
        return 0

    def cuCtxRecordEvent(self, context, event):
        FakeEvent.log.append("record all")
        return self.records


class KnownCost:
    """Takes the place of `PairCost`, which has tests of its own; pairs cost nothing."""

    def __init__(self):
        self.chosen, self.known, self.removed_ms = [], True, 0.0

    def choose(self, device, stream, hold):
        self.chosen.append((device, stream.name, type(hold)))

    def take_out(self, sample):
        return sample - self.removed_ms


class TestCudaEvents:
    """The order of events and calls; the numbers are tested on a GPU."""

    @pytest.fixture
    def driver(self):
        return FakeDriver()

    @pytest.fixture
    def torch_cuda(self, monkeypatch, driver):
        import torch

        FakeEvent.log = []
        stream = types.SimpleNamespace(name="main", cuda_stream=7)
        fake = types.SimpleNamespace(
            Event=FakeEvent,
            synchronize=lambda: FakeEvent.log.append("synchronize"),
            device=lambda device: contextlib.nullcontext(FakeEvent.log.append(device)),
            current_stream=lambda device: stream,
            _sleep=lambda cycles: FakeEvent.log.append("sleep"),
            get_device_properties=lambda device: types.SimpleNamespace(
                multi_processor_count=10, max_threads_per_multi_processor=1536
            ),
        )
        monkeypatch.setattr(torch, "cuda", fake)
        for module in (hold, context_event):
            monkeypatch.setattr(module, "cuda_driver", lambda: driver)
        monkeypatch.setattr(cuda_event, "PairCost", KnownCost)
        return fake

    @pytest.fixture
    def timer(self, torch_cuda):
        return CudaEventTimer()

    def call(self, timer, function=lambda: FakeEvent.log.append("call")):
        FakeEvent.log.clear()
        return timer.time_call(function, (), device="cuda:1")

    def test_events_enclose_the_call_on_a_device_that_is_held(self, timer):
        self.call(timer)
        assert self.call(timer) == (0.25, None)
        around = ["hold", ("record", "main"), "call", ("record", "main"), "record all"]
        rest = ["record all", "is it over?", "synchronize"]
        assert FakeEvent.log == ["cuda:1", *around, "await", "await", *rest]

    def test_what_a_pair_of_events_costs_is_taken_out(self, timer):
        timer._cost.removed_ms = 0.002
        assert self.call(timer)[0] == pytest.approx(0.248)
        assert timer.removed_ms == 0.002
        assert timer._cost.chosen == [("cuda:1", "main", hold.DeviceHold)]

    def test_it_can_be_measured_before_the_first_call(self, timer):
        timer.prepare("cuda:1")
        assert timer._cost.chosen == [("cuda:1", "main", hold.DeviceHold)]
        assert FakeEvent.log == ["cuda:1"]

    def test_where_that_is_not_known_a_note_says_so(self, timer):
        timer._cost.known = False
        for _ in range(2):
            assert self.call(timer) == (0.25, None)
            assert timer.take_notes() == [cuda_event.NOT_REMOVED]

    def test_the_stream_is_the_one_before_the_call(self, timer, torch_cuda):
        def other():
            torch_cuda.current_stream = lambda device: None

        self.call(timer, other)
        assert FakeEvent.log.count(("record", "main")) == 2

    def test_measuring_takes_one_call_after_the_other(self, timer):
        samples = timer.measure(
            lambda index: FakeEvent.log.append(index),
            lambda index: (index,),
            warmup=1,
            iterations=2,
            device="cuda:1",
        )
        assert samples == [0.25, 0.25]
        assert [entry for entry in FakeEvent.log if isinstance(entry, int)] == [0, 1, 2]
        assert FakeEvent.log.count("synchronize") == 3

    def test_the_whole_device_is_held(self, timer, driver):
        self.call(timer)
        assert driver.held == [(30, 1, 1, 512, 1, 1, 0)]  # 10 × 1536 threads

    def test_it_is_let_go_when_all_is_enqueued(self, timer, driver):
        seen = []
        for _ in range(3):
            self.call(timer, lambda: seen.append(driver.word.value))
            assert driver.word.value == driver.tickets[-1]
        assert seen[1:] == driver.tickets[:2]  # still the one of the call before
        assert len({*driver.tickets}) == 3
        assert seen[0] != driver.tickets[0]

    def test_it_is_let_go_if_the_call_raises(self, timer, driver):
        with pytest.raises(ZeroDivisionError):
            self.call(timer, lambda: 1 / 0)
        assert driver.word.value == driver.tickets[-1]

    def test_numbers_begin_again(self, timer, driver):
        self.call(timer)
        timer._hold._ticket.value = 2**32 - 1
        self.call(timer)
        assert driver.tickets[-1] == driver.word.value == 0

    def test_each_device_has_a_kernel_of_its_own(self, timer, driver):
        for device in ("cuda:1", "cuda:0", "cuda:1"):
            timer.time_call(lambda: None, (), device=device)
        assert [*timer._hold._kernels] == ["cuda:1", "cuda:0"]
        assert driver.word.value == driver.tickets[-1]

    def test_calls_that_take_long_to_enqueue_are_told(self, timer, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(timer, "_clock", lambda: clock.now / 1e9)
        for us, told in ((900, False), (1100, True), (10, False)):
            self.call(timer, lambda us=us: setattr(clock, "now", clock.now + us * 1000))
            assert any("waiting for the host" in note for note in timer.take_notes()) is told

    def test_without_the_kernel_it_is_busy_as_long_as_enqueuing_took(
        self, timer, driver, torch_cuda, monkeypatch
    ):
        driver.memory = 2
        asked = []
        monkeypatch.setattr(timer._hold, "_sleep", asked.append)
        clock = Clock()
        monkeypatch.setattr(timer, "_clock", lambda: clock.now / 1e9)
        for us in (100, 10**6, 8, 8):
            self.call(timer, lambda us=us: setattr(clock, "now", clock.now + us * 1000))
        assert asked == pytest.approx([2000 * us * 1.25 for us in (200, 100, 1000, 8)])
        assert not driver.held
        assert "do not trust" in timer.take_notes()[0]

    def test_work_on_other_streams_counts(self, timer, monkeypatch):
        self.call(timer)
        timer.take_notes()
        monkeypatch.setattr(timer._everything._events["cuda:1", "end"], "later", 3.0)
        assert self.call(timer)[0] == 3.0
        assert "busy beyond" in timer.take_notes()[0]
        assert timer.take_notes() == []

    def test_the_cost_of_looking_does_not(self, timer, monkeypatch):
        self.call(timer)
        timer.take_notes()
        monkeypatch.setattr(timer._everything._events["cuda:1", "end"], "later", 0.252)
        assert self.call(timer)[0] == 0.25
        assert timer.take_notes() == []

    def test_what_is_enqueued_later_is_added(self, timer, torch_cuda, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(timer, "_clock", lambda: clock.now / 1e9)
        monkeypatch.setattr(
            timer, "_synchronize", lambda: setattr(clock, "now", clock.now + 5_000_000)
        )
        assert self.call(timer)[0] == pytest.approx(5.25)
        assert "busy beyond" in timer.take_notes()[0]

    @pytest.mark.parametrize(
        ("rest_us", "synchronising_us", "old", "added_us"),
        [
            (8, 6, False, 0),
            (49, 90, False, 0),  # a tool that records takes its time while it synchronises
            (8, 240, False, 0),
            (60, 6, False, 60),
            (60, 200, False, 60),
            (8, 260, False, 268),
            (0, 40, True, 0),
            (0, 60, True, 60),
        ],
    )
    def test_how_long_an_idle_device_may_take(
        self, timer, driver, monkeypatch, rest_us, synchronising_us, old, added_us
    ):
        clock = Clock()

        def wait(microseconds):
            clock.now += microseconds * 1000

        driver.records = 801 if old else 0
        monkeypatch.setattr(timer, "_clock", lambda: clock.now / 1e9)
        monkeypatch.setattr(timer._everything, "_is_over", lambda event: not wait(rest_us))
        monkeypatch.setattr(timer, "_synchronize", lambda: wait(synchronising_us))
        assert self.call(timer)[0] == pytest.approx(0.25 + added_us / 1e3)
        assert bool(timer.take_notes()) is bool(added_us)

    def test_it_asks_until_everything_is_over(self, timer, monkeypatch):
        answers = [False, False, True]
        monkeypatch.setattr(timer._everything, "_is_over", lambda event: answers.pop(0))
        self.call(timer)
        assert answers == []

    def test_a_driver_that_cannot_launch(self, timer, driver):
        driver.launches = 1
        self.call(timer)
        assert "sleep" in FakeEvent.log
        self.call(timer)
        assert "do not trust" in timer.take_notes()[0]

    def test_no_driver_at_all(self, torch_cuda, monkeypatch):
        for module in (hold, context_event):
            monkeypatch.setattr(module, "cuda_driver", lambda: None)
        timer = CudaEventTimer()
        assert self.call(timer) == (0.25, None)
        assert FakeEvent.log.count("sleep") == 1

    def test_an_old_driver_has_no_event_of_the_whole_context(self, timer, driver):
        driver.records = 801
        for _ in range(2):
            assert self.call(timer) == (0.25, None)
        assert "record all" not in FakeEvent.log

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
    def test_times_that_make_no_sense(self, timer, monkeypatch, value):
        monkeypatch.setattr(FakeEvent, "later", value)
        with pytest.raises(TimingError):
            self.call(timer)

    def test_the_functions_are_those_from_before(self, timer, torch_cuda, monkeypatch):
        monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, stop: 0.0)
        monkeypatch.setattr(FakeEvent, "synchronize", lambda self: None)
        monkeypatch.setattr(FakeEvent, "record", lambda self, stream=None: None)
        for name in vars(torch_cuda):
            monkeypatch.setattr(torch_cuda, name, None)
        assert self.call(timer) == (0.25, None)
        assert FakeEvent.log.count("await") == 2

    def test_what_the_call_raises_goes_on(self, timer):
        with pytest.raises(ZeroDivisionError):
            self.call(timer, lambda: 1 / 0)


def test_there_is_no_driver_here():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert hold.cuda_driver() is None
    else:
        assert hold.cuda_driver() is not None


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

    def test_a_timer_by_name(self):
        assert time_runnable(lambda: None, [], 1, 3, "cpu", timer="cpu") < 1.0
        with pytest.raises(CapabilityError, match="'cuda_event' is for cuda, not for 'cpu'"):
            time_runnable(lambda: None, [], 1, 3, "cpu", timer="cuda_event")

    def test_short_functions_are_timed_in_batches(self):
        calls = []
        latency = time_runnable(lambda: calls.append(1), [], 1, 5, "cpu")
        assert 0 < latency < 0.001
        assert len(calls) > 6 + 5 * 5

    def test_a_function_that_fails(self):
        with pytest.raises(ZeroDivisionError):
            time_runnable(lambda: 1 / 0, [], 0, 5, "cpu")


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

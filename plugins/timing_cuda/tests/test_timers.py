"""Events, graphs and do_bench on a device that is simulated; GPUs test the numbers."""

import contextlib
import ctypes
import math
import sys
import types
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_timing_cuda import driver, known_work, probes
from fib_timing_cuda.cuda_event import CudaEventTimer
from fib_timing_cuda.cuda_graph import CudaGraphTimer
from fib_timing_cuda.do_bench import DoBenchTimer
from fib_timing_cuda.driver import LEAST_MS, MOST_MS, PairCost
from fib_timing_cuda.known_work import work_for
from flashinfer_bench.bench.timing.base import EnqueuedCall
from flashinfer_bench.errors import CapabilityError, TimingError
from flashinfer_bench.plugins import Availability

pytestmark = pytest.mark.torch

US = 1e-3  # in milliseconds
NUMBERS = [float("nan"), float("inf"), -0.1]


class Device:
    """``torch.cuda`` and the driver's library, of a device on which things take microseconds."""

    def __init__(self):
        self.now = 0.0
        self.way = 2.5  # from an event to a kernel, and from it to another one
        self.ends = 0.57  # what a kernel takes besides watching the clock
        self.tick_ns = 32
        self.fails = {}
        self.log, self.slept = [], []
        self.memory = ctypes.c_uint64(0)
        self.word, self.tickets = ctypes.c_uint32(77), []
        self.kernels, self.counts = [], []
        self.elsewhere = 0.0  # how much longer other streams work
        self.empty = False  # whether captured graphs are
        self.sample = None  # what events tell, if not what has passed
        device = self

        class Event:
            cuda_event = 4096

            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream=None):
                self.at = device.now
                device.log.append("record")

            def synchronize(self):
                device.log.append("await")

            def query(self):
                return True

            def elapsed_time(self, stop):
                passed = stop.at - self.at
                return passed * US if device.sample is None else device.sample

        class Graph:
            def capture_begin(self):
                device.log.append("begin")

            def capture_end(self):
                device.log.append("end")
                if device.empty:
                    warnings.warn("The CUDA Graph is empty.", stacklevel=1)

            def replay(self):
                device.work(250.0, "replay")

        self.Event, self.CUDAGraph = Event, Graph

    def work(self, us, what="call"):
        """Do something that takes so long by events."""
        self.log.append(what)
        self.now += us + self.way

    def answer(self, name):
        self.log.append(name)
        return self.fails.get(name, 0)

    # torch.cuda

    def synchronize(self, device=None):
        self.log.append("synchronize")

    def device(self, name):
        return contextlib.nullcontext()

    def current_stream(self, device):
        return types.SimpleNamespace(cuda_stream=7)

    def Stream(self, device):
        return "side"

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(f"on {stream}")
        yield
        self.log.append(f"off {stream}")

    def _sleep(self, cycles):
        self.slept.append(cycles)

    def get_device_properties(self, device):
        return types.SimpleNamespace(multi_processor_count=10, max_threads_per_multi_processor=1536)

    # libcuda

    def cuMemHostAlloc(self, host, size, flags):
        assert (size, flags) == (4, 3)
        host._obj.value = ctypes.addressof(self.word)
        return self.fails.get("host memory", 0)

    def cuMemHostGetDevicePointer_v2(self, seen, host, flags):
        assert host.value == ctypes.addressof(self.word)
        seen._obj.value = 2**40
        return 0

    def cuModuleLoadData(self, module, ptx):
        assert ptx.endswith(b"\0")
        return self.fails.get("load", 0) if b"spin" in ptx else 0

    def cuModuleGetFunction(self, function, module, name):
        self.kernels.append(name.decode())
        function._obj.value = len(self.kernels)
        return self.fails.get("find", 0) if name == b"spin" else 0

    def cuLaunchKernel(self, function, *sizes_and_more):
        sizes, stream, values = sizes_and_more[:7], *sizes_and_more[7:9]
        assert stream.value == 7
        return getattr(self, self.kernels[function.value - 1])(sizes, values)

    def hold(self, sizes, values):
        assert sizes == (30, 1, 1, 512, 1, 1, 0)
        word, limit = (ctypes.c_uint64.from_address(values[at]).value for at in (0, 2))
        assert (word, limit) == (2**40, 1_000_000)
        self.tickets.append(ctypes.c_uint32.from_address(values[1]).value)
        return self.answer("hold")

    def spin(self, sizes, values):
        assert sizes == (1, 1, 1, 1, 1, 1, 0)
        count, place = (ctypes.c_uint64.from_address(values[at]).value for at in range(2))
        self.counts.append(("spin", count))
        watched = -(-count // self.tick_ns) * self.tick_ns
        self.now += self.way + self.ends + watched / 1e3
        if place:
            self.memory.value = watched
        return self.answer("launch")

    def steps(self, sizes, values):
        self.counts.append(("steps", ctypes.c_uint64.from_address(values[0]).value))
        return self.answer("launch")

    def cuMemAlloc_v2(self, place, size):
        place._obj.value = ctypes.addressof(self.memory)
        return self.answer("allocate")

    def cuMemFree_v2(self, place):
        return self.answer("free")

    def cuStreamSynchronize(self, stream):
        return self.fails.get("synchronize", 0)

    def cuMemcpyDtoH_v2(self, told, place, size):
        told._obj.value = self.memory.value
        return self.fails.get("copy", 0)

    def cuCtxGetCurrent(self, context):
        return 0

    def cuCtxRecordEvent(self, context, event):
        self.log.append("record all")
        # An event of the whole context was made by recording it on a stream.
        for made in self.of_context:
            made.at = self.now + self.elsewhere
        return 0

    of_context = ()


@pytest.fixture
def device(monkeypatch):
    import torch

    made = Device()
    monkeypatch.setattr(torch, "cuda", made)
    for module in (driver, known_work):
        monkeypatch.setattr(module, "cuda_driver", lambda: made)
    return made


@pytest.fixture
def no_driver(device, monkeypatch):
    for module in (driver, known_work):
        monkeypatch.setattr(module, "cuda_driver", lambda: None)


def call(timer, function=lambda: None, *arguments):
    return timer.time_call(function, arguments, device="cuda:1")


def forget(monkeypatch, device):
    """Have nothing be found any more that a solution could replace."""
    import torch

    for name in ("record", "synchronize", "elapsed_time"):
        monkeypatch.setattr(device.Event, name, lambda *_: pytest.fail("not the one from then"))
    monkeypatch.setattr(torch, "cuda", None)
    for module in (driver, known_work):
        monkeypatch.setattr(module, "cuda_driver", lambda: pytest.fail("asked for again"))


# --------------------------------------------------------------------------- work of known length


class TestKnownWork:
    def test_kernels_are_launched_with_their_lengths(self, device):
        work = work_for("cuda:1")
        short, long = work.spin(10.0), work.spin(1000.0)
        for launch in (short, long, short):
            launch()
        assert device.counts == [("spin", 10_000), ("spin", 1_000_000), ("spin", 10_000)]

    def test_constant_work_has_as_many_steps_as_take_a_millisecond(self, device):
        work_for("cuda:1").steady()()
        assert device.counts[:5] == [("steps", 10_000)] * 5
        assert device.log.count("synchronize") == 6  # once when it is made
        assert device.counts[5][0] == "steps"

    def test_what_there_is_no_work_for(self, device, request):
        work = work_for("cuda:0")
        device.fails["launch"] = 719
        with pytest.raises(CapabilityError, match="cuda:0: the driver refused a kernel: error 719"):
            work.spin(1.0)()
        device.fails["load"] = 222
        with pytest.raises(CapabilityError, match="cannot compile a kernel: error 222"):
            work_for("cuda:0")
        request.getfixturevalue("no_driver")
        with pytest.raises(CapabilityError, match=r"libcuda\.so\.1"):
            work_for("cuda:0")
        with pytest.raises(CapabilityError, match="for 'abacus'; use cpu or cuda:N"):
            work_for("abacus")


# --------------------------------------------------------------------------- calls made later


class TestEnqueuedCalls:
    def test_each_has_its_own_latency_and_nothing_waits(self, device):
        timer, seen = CudaEventTimer(), []
        timer.prepare("cuda:1")
        calls = [
            EnqueuedCall(
                lambda: device.work(100.0, "before"),
                lambda us=us: device.work(us) or us,
                lambda found: seen.append(found) or device.work(1000.0, "after"),
            )
            for us in (4.0, 30.0, 7.0)
        ]
        device.log.clear()
        latencies = timer.enqueue_calls(calls, device="cuda:1")
        assert device.log == ["before", "record", "call", "record", "after"] * 3
        assert seen == [4.0, 30.0, 7.0]
        assert latencies() == pytest.approx([4.0 * US, 30.0 * US, 7.0 * US], abs=0.1 * US)

    def test_what_is_no_duration_is_refused(self, device):
        timer = CudaEventTimer()
        latencies = timer.enqueue_calls([EnqueuedCall(int, int, repr)], device="cuda:1")
        device.sample = math.nan
        with pytest.raises(TimingError, match="a latency of nan ms"):
            latencies()


# --------------------------------------------------------------------------- the cost of a pair


class TestPairCost:
    @pytest.fixture
    def measured(self, device):
        def measure():
            cost = PairCost()
            cost.choose("cuda:1", device.current_stream(""), driver.DeviceHold())
            return cost

        return measure

    @pytest.mark.parametrize(
        ("way", "removed"),
        [*((us, us * US) for us in (0.3, 2.1, 2.5, 2.9)), (400.0, MOST_MS), (-1.0, 0.0)],
    )
    def test_what_is_not_the_kernel_within_bounds(self, measured, device, way, removed):
        device.way = way
        cost = measured()
        assert cost.known
        assert cost.removed_ms == pytest.approx(removed, abs=1e-7)
        assert device.log[-5:] == ["hold", "record", "launch", "record", "await"]
        assert device.log.index("free") < device.log.index("hold")
        device.log.clear()
        cost.choose("cuda:1", device.current_stream(""), driver.DeviceHold())
        assert device.log == [], "it is measured once for a device"

    @pytest.mark.parametrize(
        "what", ["load", "find", "allocate", "launch", "synchronize", "copy", "host memory"]
    )
    def test_a_driver_that_refuses(self, measured, device, what):
        device.fails[what] = 222
        cost = measured()
        assert (cost.known, cost.removed_ms, cost.take_out(0.02)) == (False, 0.0, 0.02)
        assert ("free" in device.log) == (what not in ("load", "find", "allocate"))
        device.fails.clear()
        cost.choose("cuda:1", device.current_stream(""), driver.DeviceHold())
        assert not cost.known, "it is tried again"

    @given(st.floats(0, 1e6), st.floats(0, MOST_MS))
    def test_no_more_than_that_is_gained(self, sample, removed):
        cost = PairCost.__new__(PairCost)
        cost._device, cost._found = "cuda:0", {"cuda:0": removed}
        found = cost.take_out(sample)
        assert sample - MOST_MS <= found <= sample
        assert found >= min(sample, LEAST_MS)


# ------------------------------------------------------------------------------------ timers


@pytest.fixture(params=[CudaEventTimer, CudaGraphTimer])
def timer(request, device):
    made = request.param()
    assert device.log == [], "making it touches the device"
    return made


class TestBoth:
    @pytest.mark.parametrize("value", NUMBERS)
    def test_times_that_make_no_sense(self, timer, device, value):
        call(timer)
        device.sample = value
        with pytest.raises(TimingError, match="reported a latency of"):
            call(timer)

    def test_the_functions_are_those_from_before(self, timer, device, monkeypatch):
        forget(monkeypatch, device)
        # The host's clock stands: a pause of this process would be work left on other streams.
        monkeypatch.setattr(timer, "_clock", lambda: 0.0, raising=False)
        sample, result = call(timer, lambda *given: device.work(250.0) or given, 1, "two")
        assert sample == pytest.approx(0.25)
        assert result == (1, "two")

    def test_what_a_pair_costs_is_said_if_it_is_not_known(self, no_driver, device):
        for made in (CudaEventTimer(), CudaGraphTimer()):
            call(made)
            assert any("could not be measured here" in note for note in made.take_notes())
            assert made.removed_ms == 0.0


class TestCudaEvents:
    @pytest.fixture
    def advance(self):
        """A clock that stands still but when it is told that microseconds have passed."""
        now = [0.0]

        def advance(us=0):
            now[0] += us / 1e6
            return now[0]

        return advance

    @pytest.fixture
    def timer(self, device, monkeypatch, advance):
        made = CudaEventTimer()
        monkeypatch.setattr(made, "_clock", advance)
        return made

    def test_events_enclose_the_call_on_a_device_that_is_held(self, timer, device):
        call(timer)
        device.log.clear()
        sample, _ = call(timer, lambda: device.work(250.0))
        assert sample == pytest.approx(0.25)
        assert timer.removed_ms == pytest.approx(2.5 * US)
        around = ["hold", "record", "call", "record", "record all"]
        assert device.log == [*around, "await", "await", "record all", "synchronize"]

    def test_it_is_let_go_when_all_is_enqueued(self, timer, device):
        call(timer)
        for _ in range(3):
            call(timer)
            assert device.word.value == device.tickets[-1]
        seen = []
        call(timer, lambda: seen.append(device.word.value))
        assert seen == [device.tickets[-2]]  # still the one of the call before
        with pytest.raises(ZeroDivisionError):
            call(timer, lambda: 1 / 0)
        assert device.word.value == device.tickets[-1]
        assert len({*device.tickets}) == len(device.tickets)

    @pytest.mark.parametrize("lacks", ["host memory", "hold", "everything"])
    def test_without_the_kernel_it_is_busy_as_long_as_enqueuing_took(
        self, request, device, monkeypatch, advance, lacks
    ):
        if lacks == "everything":
            request.getfixturevalue("no_driver")
        device.fails[lacks] = 2
        timer = CudaEventTimer()
        monkeypatch.setattr(timer, "_clock", advance)
        call(timer)
        device.slept.clear()
        for us in (100, 10**6, 8, 8):
            call(timer, lambda us=us: advance(us))
        assert device.slept == pytest.approx([2000 * us * 1.25 for us in (0, 100, 1000, 8)])
        assert "may be missed" in timer.take_notes()[0]

    def test_work_on_other_streams_counts(self, timer, device):
        call(timer)
        timer.take_notes()
        device.of_context = [timer._everything._events["cuda:1", "end"]]
        device.elsewhere = 3000.0
        sample, _ = call(timer)
        assert sample == pytest.approx(3.0, abs=0.003)
        assert "busy beyond" in timer.take_notes()[0]


class TestCudaGraph:
    @pytest.fixture
    def timer(self, device):
        return CudaGraphTimer()

    def test_the_call_is_captured_and_its_replay_is_timed(self, timer, device):
        call(timer)
        device.log.clear()
        sample, result = call(timer, lambda *given: device.log.append("call") or given, 1, "two")
        assert sample == pytest.approx(0.25)
        assert result == (1, "two")
        assert device.log == [
            *("synchronize", "on side", "begin", "call", "end", "off side"),
            *("hold", "record", "replay", "record", "synchronize"),
        ]

    def test_what_the_function_raises_goes_on_after_the_capture_has_ended(self, timer, device):
        with pytest.raises(ZeroDivisionError):
            call(timer, lambda: 1 / 0)
        assert device.log[-2:] == ["begin", "end"]

    @pytest.mark.parametrize(
        "text",
        [
            "CUDA error: operation not permitted when stream is capturing",
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless pinned",
        ],
    )
    def test_a_call_that_cannot_be_captured_is_said_to_be_so(self, timer, text):
        def waits():
            raise RuntimeError(f"{text}\nSearch for it in the manual.")

        with pytest.raises(TimingError, match="cannot be captured as a CUDA graph") as caught:
            call(timer, waits)
        assert text in caught.value.message
        assert "manual" not in caught.value.message
        assert "--timer cuda_event" in caught.value.hint

    def test_nothing_captured_is_noted_and_no_warning(self, timer, device):
        device.empty = True
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(timer)
        assert any("nothing was captured" in note for note in timer.take_notes())
        assert timer.take_notes() == []


def test_do_bench_makes_many_calls_and_returns_what_the_last_did(monkeypatch, device):
    def do_bench(function, **options):
        assert options["return_mode"] == "median"
        for _ in range(3):
            function()
        return latencies.pop()

    calls, latencies = [], [NUMBERS[0], 0.5]
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    module = types.SimpleNamespace(do_bench=do_bench)
    monkeypatch.setitem(sys.modules, "triton.testing", module)
    assert call(DoBenchTimer(), lambda *given: calls.append(given) or len(calls), 1) == (0.5, 3)
    assert calls == [(1,)] * 3
    assert device.log == ["synchronize"]
    with pytest.raises(TimingError, match="do_bench reported"):
        call(DoBenchTimer())


# ------------------------------------------------------------------------------------ probes


class TestProbe:
    def test_torch_with_cuda(self, monkeypatch):
        monkeypatch.setattr(probes, "torch_versions", lambda: {"torch": "2.9", "cuda": "12.8"})
        monkeypatch.setattr(probes, "nvidia_gpus", lambda: ("one", "another"))
        assert probes.cuda_event() == Availability(True, "CUDA 12.8, 2 devices")

    def test_triton_is_needed_too(self, monkeypatch):
        monkeypatch.setattr(probes, "cuda_event", lambda: Availability(True, "CUDA 13"))
        monkeypatch.setattr(probes, "find_spec", lambda name: None)
        answer = probes.do_bench()
        assert (bool(answer), answer.remedy) == (False, "pip install triton")
        monkeypatch.setattr(probes, "find_spec", lambda name: object())
        assert probes.do_bench()
        no = Availability(False, "no NVIDIA device was found")
        monkeypatch.setattr(probes, "cuda_event", lambda: no)
        assert probes.do_bench() is no

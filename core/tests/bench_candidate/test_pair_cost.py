"""What pairs of events cost, on a stand-in for a device; GPUs test the numbers."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.timing import pair_cost
from flashinfer_bench.bench.timing.pair_cost import LEAST_MS, MOST_MS, PairCost

pytestmark = pytest.mark.torch

US = 1e-3  # in milliseconds
STREAM = types.SimpleNamespace(cuda_stream=7)


class Device:
    """A driver, and events, of a device on which things take so many microseconds."""

    def __init__(self):
        self.now = 0.0
        self.way = 2.5  # from an event to a kernel, and from it to another one
        self.ends = 0.57  # what a kernel takes besides watching the clock
        self.tick_ns = 32
        self.fails = {}
        self.log = []
        self.memory = ctypes.c_uint64(0)
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                assert stream is STREAM
                self.at = device.now
                device.log.append("record")

            def synchronize(self):
                device.log.append("await")

            def elapsed_time(self, stop):
                return (stop.at - self.at) * US

        self.Event = Event

    def answer(self, name):
        self.log.append(name)
        return self.fails.get(name, 0)

    def cuModuleLoadData(self, module, ptx):
        assert ptx.endswith(b"\0")
        return self.answer("load")

    def cuModuleGetFunction(self, function, module, name):
        assert name == b"spin"
        return self.answer("find")

    def cuMemAlloc_v2(self, place, size):
        place._obj.value = ctypes.addressof(self.memory)
        return self.answer("allocate")

    def cuMemFree_v2(self, place):
        assert place.value == ctypes.addressof(self.memory)
        return self.answer("free")

    def cuStreamSynchronize(self, stream):
        assert stream.value == 7
        return self.answer("synchronize")

    def cuMemcpyDtoH_v2(self, told, place, size):
        told._obj.value = self.memory.value
        return self.answer("copy")

    def cuLaunchKernel(self, function, *sizes_and_more):
        assert sizes_and_more[:7] == (1, 1, 1, 1, 1, 1, 0)
        assert sizes_and_more[7].value == 7
        count, place = (
            ctypes.c_uint64.from_address(sizes_and_more[8][at]).value for at in range(2)
        )
        watched = -(-count // self.tick_ns) * self.tick_ns
        self.now += self.way + self.ends + watched / 1e3
        if place:
            assert place == ctypes.addressof(self.memory)
            self.memory.value = watched
        return self.answer("launch")


class Hold:
    fills = True

    def __init__(self, device):
        self.device = device

    def enqueue(self, expected_us, device, stream):
        assert (expected_us > 0, device, stream) == (True, "cuda:1", 7)
        self.device.log.append("hold")

    def release(self):
        self.device.log.append("release")


@pytest.fixture
def device(monkeypatch):
    import torch

    made = Device()
    monkeypatch.setattr(torch, "cuda", types.SimpleNamespace(Event=made.Event))
    monkeypatch.setattr(pair_cost, "cuda_driver", lambda: made)
    return made


@pytest.fixture
def measured(device):
    def measure(hold=None):
        cost = PairCost()
        cost.choose("cuda:1", STREAM, hold or Hold(device))
        return cost

    return measure


class TestMeasured:
    @pytest.mark.parametrize("way", [0.3, 2.1, 2.5, 2.9])
    def test_what_is_not_the_kernel(self, measured, device, way):
        device.way = way
        cost = measured()
        assert cost.known
        assert cost.removed_ms == pytest.approx(way * US, abs=1e-7)

    def test_making_one_touches_no_device(self, device):
        cost = PairCost()
        assert device.log == []
        assert (cost.known, cost.removed_ms, cost.take_out(1.0)) == (False, 0.0, 1.0)

    def test_the_device_is_held_while_a_pair_is_enqueued(self, measured, device):
        measured()
        pair = ["hold", "record", "launch", "record", "release", "await"]
        assert device.log[-6:] == pair
        assert device.log.index("free") < device.log.index("hold")

    def test_once_for_each_device(self, measured, device):
        cost = measured()
        before = list(device.log)
        cost.choose("cuda:1", STREAM, Hold(device))
        assert device.log == before

    def test_each_device_has_its_own(self, measured, device):
        cost = measured()
        first = cost.removed_ms
        device.way = 1.0
        cost._found["cuda:0"] = 0.001
        cost.choose("cuda:0", STREAM, Hold(device))
        assert cost.removed_ms == 0.001
        cost.choose("cuda:1", STREAM, Hold(device))
        assert cost.removed_ms == first

    def test_single_pairs_that_take_longer_do_not_matter(self, measured, device, monkeypatch):
        launches = iter(range(10**6))
        launch = device.cuLaunchKernel

        def sometimes_slow(*given):
            device.now += 50.0 if next(launches) % 4 == 0 else 0.0
            return launch(*given)

        monkeypatch.setattr(device, "cuLaunchKernel", sometimes_slow)
        assert measured().removed_ms == pytest.approx(2.5 * US, abs=1e-7)

    @pytest.mark.parametrize(("way", "removed"), [(400.0, MOST_MS), (-1.0, 0.0)])
    def test_it_is_bounded(self, measured, device, way, removed):
        device.way = way
        cost = measured()
        assert (cost.known, cost.removed_ms) == (True, removed)

    def test_the_functions_are_those_from_before(self, device, monkeypatch):
        import torch

        cost = PairCost()
        for name in ("record", "synchronize", "elapsed_time"):
            monkeypatch.setattr(device.Event, name, lambda *_: pytest.fail("not the one from then"))
        monkeypatch.setattr(torch, "cuda", None)
        monkeypatch.setattr(pair_cost, "cuda_driver", lambda: pytest.fail("asked for again"))
        cost.choose("cuda:1", STREAM, Hold(device))
        assert cost.known


class TestNotMeasured:
    @pytest.mark.parametrize("what", ["load", "find", "allocate", "launch", "synchronize", "copy"])
    def test_a_driver_that_refuses(self, measured, device, what):
        device.fails[what] = 222
        cost = measured()
        assert (cost.known, cost.removed_ms, cost.take_out(0.02)) == (False, 0.0, 0.02)

    def test_no_driver(self, measured, monkeypatch):
        monkeypatch.setattr(pair_cost, "cuda_driver", lambda: None)
        assert not measured().known

    @pytest.mark.parametrize(
        ("tick_ns", "known"), [(1, True), (32, True), (64, True), (1024, False)]
    )
    def test_a_clock_that_ticks_slowly(self, measured, device, tick_ns, known):
        device.tick_ns = tick_ns
        assert measured().known is known

    def test_a_device_that_cannot_be_filled(self, measured, device):
        hold = Hold(device)
        hold.fills = False
        assert not measured(hold).known
        assert device.log.count("hold") == 1

    def test_it_is_not_tried_again(self, measured, device):
        device.fails["load"] = 222
        cost = measured()
        device.fails.clear()
        cost.choose("cuda:1", STREAM, Hold(device))
        assert not cost.known

    def test_memory_is_freed_where_it_fails(self, measured, device):
        device.fails["copy"] = 700
        measured()
        assert device.log[-1] == "free"


class TestTakeOut:
    def test_examples(self, measured):
        cost = measured()
        assert cost.take_out(0.1) == pytest.approx(0.0975, abs=1e-6)
        assert cost.take_out(0.0031) == pytest.approx(0.0006, abs=1e-6)
        assert cost.take_out(0.0021) == LEAST_MS
        assert cost.take_out(0.0) == 0.0

    @given(st.floats(0, 1e6), st.floats(0, MOST_MS))
    def test_no_more_than_that_is_gained(self, sample, removed):
        cost = PairCost.__new__(PairCost)
        cost._device, cost._found = "cuda:0", {"cuda:0": removed}
        found = cost.take_out(sample)
        assert sample - MOST_MS <= found <= sample
        assert found >= min(sample, LEAST_MS)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernel_assembles(architecture, tmp_path):
    """By the assembler that comes with triton, or the toolkit's; no device is needed."""
    assembler = shutil.which("ptxas")
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        assembler = str(Path(spec.origin).parent / "backends/nvidia/bin/ptxas")
    if assembler is None or not Path(assembler).exists():
        pytest.skip("neither triton nor the CUDA toolkit is installed: there is no ptxas")
    source = tmp_path / "kernel.ptx"
    source.write_bytes(pair_cost._PTX.rstrip(b"\0"))
    command = [assembler, f"--gpu-name={architecture}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""What is made of NVML's answers."""

import os
import subprocess
import sys

import pytest

from fib_judge.watch.nvml import NvmlWatcher
from flashinfer_bench.errors import CapabilityError

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


def started(nominal_mhz=None):
    watcher = NvmlWatcher()
    watcher.nominal_mhz = nominal_mhz
    watcher.start("cuda:0")
    return watcher


class TestValues:
    def test_all_of_them_come_in_turn(self, gpu):
        watcher = started()
        found = {}
        for _ in range(4):
            found.update(watcher.sample().values)
        assert found == {
            "sm_mhz": 1980,
            "memory_mhz": 2619,
            "temperature_c": 41,
            "power_w": 112.5,
            "gpu_percent": 3.0,
        }

    def test_summary(self, gpu):
        assert started().stop().facts == {"nominal_sm_mhz": 1980, "power_limit_w": 700.0}
        assert gpu.now("users") == 0


class TestThrottling:
    @pytest.mark.parametrize(
        ("bits", "throttled", "states"),
        [
            (0x0, (), ()),
            (0x8, ("hw_slowdown",), ("hw_slowdown",)),
            (0x20, ("sw_thermal",), ("sw_thermal",)),
            (0x48, ("hw_slowdown", "hw_thermal"), ("hw_slowdown", "hw_thermal")),
            (0x80, ("power_brake",), ("power_brake",)),
            (0x4, (), ("power_cap",)),
            (0x24, ("sw_thermal",), ("power_cap", "sw_thermal")),
            (0x2, (), ("clocks_set",)),
            (0x10, (), ("sync_boost",)),
            (0x400, (), ("other",)),
        ],
    )
    def test_reasons(self, gpu, bits, throttled, states):
        gpu.set(reasons=bits)
        reading = started().sample()
        assert (reading.throttled, reading.states) == (throttled, states)

    @pytest.mark.parametrize(("mhz", "is_low"), [(1484, True), (1485, False), (1980, False)])
    def test_a_clock_below_three_quarters(self, gpu, mhz, is_low):
        gpu.set(sm=mhz)
        assert started().sample().throttled == (("low_clock",) if is_low else ())

    @pytest.mark.parametrize("explained", [0x1, 0x2, 0x4])
    def test_a_low_clock_that_is_explained(self, gpu, explained):
        gpu.set(sm=1000, reasons=explained)
        assert started().sample().throttled == ()

    def test_the_clock_that_was_set_is_the_nominal_one(self, gpu):
        gpu.set(sm=1200)
        assert started(nominal_mhz=1200).sample().throttled == ()
        assert started().sample().throttled == ("low_clock",)


class TestOtherUsers:
    def test_own_processes_are_none(self, gpu):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            gpu.set(pids=[os.getpid(), child.pid])
            watcher = started()
            assert "other_processes" not in watcher.stop().facts
        finally:
            child.communicate(b"\n")

    def test_others_are_told(self, gpu):
        watcher = started()
        gpu.set(pids=[1])
        summary = watcher.stop()
        assert summary.facts["other_processes"] == 1
        assert summary.notes == ("other processes use the GPU (1: 1)",)


class TestNotThere:
    def test_no_bindings(self, gpu, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with pytest.raises(CapabilityError, match=r"(?s)not installed.*pip install nvidia-ml-py"):
            started()

    @pytest.mark.parametrize(
        ("function", "told"),
        [
            ("nvmlInit", "driver does not respond: error 9"),
            ("nvmlDeviceGetHandleByUUID", "does not know GPU-8f14e45f"),
        ],
    )
    def test_no_driver_or_an_unknown_device(self, gpu, function, told):
        gpu.fail(function, code=9)
        with pytest.raises(CapabilityError, match=told):
            started()
        assert not gpu.now("users")

    @pytest.mark.parametrize("code", [15, 16])
    def test_a_device_that_disappears(self, gpu, code):
        watcher = started()
        gpu.fail(REASONS, code=code)
        with pytest.raises(CapabilityError, match="has disappeared"):
            watcher.sample()

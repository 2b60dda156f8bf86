import os
import platform
from pathlib import Path

import pytest
import torch

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import (
    cpu_threads,
    devices,
    hardware_from_device,
    judge_core,
)


class FakeCuda:
    """Stands in for torch.cuda on a machine with two GPUs."""

    names = ("NVIDIA H200", "NVIDIA B200")

    def is_available(self):
        return True

    def device_count(self):
        return len(self.names)

    def is_initialized(self):
        return False

    def get_device_name(self, device):
        return self.names[torch.device(device).index]


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda())


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux only")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("processor : 0\nmodel name\t: Fast CPU  @ 3 GHz\n", "Fast CPU @ 3 GHz"),
        ("Model : Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("model name :\n", platform.processor() or platform.machine()),
        ("", platform.processor() or platform.machine()),
    ],
)
def test_the_model_is_read_from_the_kernel(monkeypatch, content, expected):
    devices._cpu_model.cache_clear()
    monkeypatch.setattr(Path, "read_text", lambda self, **_: content)
    assert devices._cpu_model() == expected
    devices._cpu_model.cache_clear()


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", "NVIDIA H200"), ("cuda:0", "NVIDIA H200"), ("cuda:1", "NVIDIA B200")],
)
def test_a_gpu_has_the_name_that_the_driver_tells(gpus, device, expected):
    assert hardware_from_device(device) == expected


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(gpus):
    with pytest.raises(CapabilityError, match="no device 'cuda:2'; available: cuda:0, cuda:1"):
        hardware_from_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cuda:-1"])
def test_what_names_no_device_is_refused(device):
    with pytest.raises(CapabilityError, match="is not supported; use cpu, cuda or cuda:N"):
        hardware_from_device(device)


class TestThreads:
    @pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (16, 15)])
    def test_one_core_stays_free(self, monkeypatch, cores, threads):
        monkeypatch.delenv("FIB_CPU_THREADS", raising=False)
        monkeypatch.setattr(devices, "usable_cores", lambda: cores)
        assert cpu_threads() == threads

    @pytest.mark.parametrize(
        ("cores", "threads", "core"), [({3}, None, None), ({2, 5, 6}, None, 2), ({2, 5}, "2", None)]
    )
    def test_it_is_the_judges(self, monkeypatch, cores, threads, core):
        monkeypatch.delenv("FIB_CPU_THREADS", raising=False)
        if threads is not None:
            monkeypatch.setenv("FIB_CPU_THREADS", threads)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
        assert judge_core() == core

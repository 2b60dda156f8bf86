from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flashinfer_bench
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import (
    cpu_threads,
    default_device,
    devices,
    env_snapshot,
    hardware_from_device,
    list_cuda_devices,
)


class FakeCuda:
    """Stands in for torch.cuda on a machine with two GPUs."""

    names = ("NVIDIA H200", "NVIDIA B200")

    def is_available(self):
        return True

    def device_count(self):
        return len(self.names)

    def get_device_name(self, device):
        return self.names[device.index or 0]


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(torch, "cuda", FakeCuda())


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_cuda_the_cpu_is_the_best_there_is(no_gpu):
    assert default_device() == "cpu"
    assert list_cuda_devices() == []


def test_with_cuda_the_first_gpu_is(gpus):
    assert default_device() == "cuda:0"
    assert list_cuda_devices() == ["cuda:0", "cuda:1"]


def test_a_driver_without_a_device_counts_as_none(gpus, monkeypatch):
    monkeypatch.setattr(FakeCuda, "names", ())
    assert default_device() == "cpu"


def test_a_cpu_has_a_name_and_a_number_of_cores():
    name = hardware_from_device("cpu")
    assert name.endswith(f"({devices._usable_cores()} cores)")
    assert len(name) > len(" (1 cores)")


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
    monkeypatch.setattr(devices, "_lines_of", lambda path: content.splitlines())
    assert devices._cpu_model() == expected
    devices._cpu_model.cache_clear()


def test_a_missing_file_has_no_lines(tmp_path):
    assert devices._lines_of(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", "NVIDIA H200"), ("cuda:0", "NVIDIA H200"), ("cuda:1", "NVIDIA B200")],
)
def test_a_gpu_has_the_name_that_the_driver_tells(gpus, device, expected):
    assert hardware_from_device(device) == expected


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(gpus):
    with pytest.raises(CapabilityError, match="no 'cuda:2'; there are cuda:0, cuda:1"):
        hardware_from_device("cuda:2")


def test_cuda_on_a_machine_without_says_so(no_gpu):
    with pytest.raises(CapabilityError, match="sees no CUDA device") as caught:
        hardware_from_device("cuda:0")
    assert "--device cpu" in caught.value.hint


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cuda:-1"])
def test_what_names_no_device_is_refused(device):
    with pytest.raises(CapabilityError, match="does not name a device"):
        hardware_from_device(device)


def test_other_kinds_of_device_are_refused():
    with pytest.raises(CapabilityError, match="use cpu, cuda"):
        hardware_from_device("meta")


def test_a_snapshot_names_hardware_and_versions():
    snapshot = env_snapshot("cpu")
    assert snapshot.hardware == hardware_from_device("cpu")
    assert snapshot.libs["torch"] == torch.__version__
    assert snapshot.libs["python"] == platform.python_version()
    assert snapshot.libs["flashinfer_bench"] == flashinfer_bench.__version__
    assert all(isinstance(version, str) for version in snapshot.libs.values())


def test_a_snapshot_of_a_gpu(gpus, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    snapshot = env_snapshot("cuda:1")
    assert snapshot.hardware == "NVIDIA B200"
    assert snapshot.libs["cuda"] == "13.0"


def test_a_snapshot_without_cuda_names_no_cuda_version(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "cuda" not in env_snapshot("cpu").libs


def test_libraries_that_are_not_installed_are_left_out(monkeypatch):
    devices._cached_versions.cache_clear()
    monkeypatch.setattr(devices, "_LIBRARIES", {"no-such-distribution": "x", "torch": "torch"})
    assert [name for name, _ in devices._cached_versions()] == ["torch"]
    devices._cached_versions.cache_clear()


@pytest.mark.parametrize(
    "module", ["flashinfer_bench.tensors", "flashinfer_bench.utils", "flashinfer_bench.compile"]
)
def test_importing_the_layer_imports_nothing_heavy(module):
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'rich', 'triton'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestThreads:
    @pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (16, 15)])
    def test_one_core_stays_free(self, monkeypatch, cores, threads):
        monkeypatch.delenv("FIB_CPU_THREADS", raising=False)
        monkeypatch.setattr(devices, "_usable_cores", lambda: cores)
        assert cpu_threads() == threads

    def test_the_environment_decides_otherwise(self, monkeypatch):
        monkeypatch.setenv("FIB_CPU_THREADS", "7")
        assert cpu_threads() == 7

"""What is here, and which records of elsewhere still hold."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from flashinfer_bench.apply.table import Place
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import devices
from flashinfer_bench.tensors.devices import device_named, installed_versions, this_hardware


@pytest.fixture
def fresh(monkeypatch):
    """Forget what has been found out about GPUs, before and after."""
    devices.nvidia_gpus.cache_clear()
    found = devices.nvidia_gpus
    yield monkeypatch
    found.cache_clear()


class TestThisHardware:
    @pytest.mark.torch
    def test_a_cpu_is_called_as_in_traces(self):
        from flashinfer_bench.tensors.devices import env_snapshot

        assert this_hardware("cpu") == env_snapshot("cpu").hardware

    @pytest.mark.parametrize("device", ["tpu", "", "CUDA:0", "mps:1", "cuda:", "cuda:x", "cuda:-1"])
    def test_other_devices_are_refused(self, device):
        with pytest.raises(CapabilityError, match="not supported; use cpu, cuda or cuda:N"):
            device_named(device)

    @pytest.mark.parametrize(
        ("device", "name"),
        [("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")],
    )
    def test_a_gpu_is_a_gpu_whether_there_is_one_or_not(self, device, name):
        assert device_named(device) == name

    def test_cuda_is_the_gpu_that_somebody_has_chosen(self, fresh):
        cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 3)
        fresh.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        assert device_named("cuda") == "cuda:3"
        assert device_named("cuda:1") == "cuda:1"
        fresh.setattr(devices, "_has_gpu", lambda: True)
        assert device_named() == "cuda:3"

    def test_hidden_gpus_are_not_used(self, fresh):
        fresh.setenv("CUDA_VISIBLE_DEVICES", "")
        assert device_named() == "cpu"
        assert this_hardware() == this_hardware("cpu")


class TestNamesOfGpus:
    """The way that does not touch CUDA, with the driver's library replaced."""

    def name_of(self, fresh, *names, visible=None):
        gpus = tuple(devices.Gpu("GPU-x", (9, 0), name) for name in names)
        fresh.setattr(devices, "nvidia_gpus", lambda: gpus)
        fresh.setattr(devices, "_cuda_is_initialised", lambda: False)
        fresh.setattr(devices, "_visible_gpus", lambda: 2)
        fresh.setattr(devices, "hardware_from_device", lambda device: f"torch's name of {device}")
        if visible is None:
            fresh.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            fresh.setenv("CUDA_VISIBLE_DEVICES", visible)
        return this_hardware("cuda:1")

    def test_equal_gpus_need_no_cuda(self, fresh):
        assert self.name_of(fresh, "NVIDIA H200", "NVIDIA H200") == "NVIDIA H200"

    def test_of_different_gpus_torch_knows_which_is_meant(self, fresh):
        assert self.name_of(fresh, "NVIDIA H200", "NVIDIA A10") == "torch's name of cuda:1"

    def test_parts_of_a_gpu_have_other_names(self, fresh):
        assert self.name_of(fresh, None) == "torch's name of cuda:1"
        assert self.name_of(fresh, "NVIDIA H200", visible="MIG-1-2") == "torch's name of cuda:1"

    @pytest.mark.parametrize(("library", "there"), [("libcuda.so.1", True), ("other", False)])
    def test_a_container_may_lack_the_library_and_have_a_gpu(self, fresh, library, there):
        def open_library(name):
            if name != library:
                raise OSError(name)
            return object()

        fresh.setattr(devices.ctypes, "CDLL", open_library)
        fresh.setattr(devices.sys, "platform", "linux")
        fresh.delitem(sys.modules, "torch", raising=False)
        fresh.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        fresh.setattr(devices, "installed_versions", lambda: {"cuda": "13.0"})
        fresh.setattr(devices, "_visible_gpus", lambda: 1)
        assert devices._has_gpu() is there


class TestVersions:
    @pytest.mark.torch
    def test_torch_is_read_without_being_imported(self):
        import torch

        found = installed_versions()
        assert found["torch"] == str(torch.__version__)
        assert found.get("cuda") == torch.version.cuda

    @pytest.mark.parametrize(
        "text",
        [
            "__version__ = '2.9.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip = None",
            '__version__ = "2.9.1+cu128"\ncuda = "12.8"\n',
        ],
    )
    def test_both_spellings_of_the_file_are_read(self, fresh, tmp_path, text):
        (tmp_path / "version.py").write_text(text)
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        fresh.setattr(devices, "find_spec", lambda name: spec)
        assert devices.torch_versions() == {"torch": "2.9.1+cu128", "cuda": "12.8"}


@pytest.mark.parametrize(
    ("language", "on", "recorded", "here", "holds"),
    [
        ("cuda", "cuda", {"cuda": "12.8"}, {"cuda": "13.0", "torch": "2.9.0"}, False),
        ("cpp", "cuda", {"cuda": "12.8"}, {"cuda": "13.0"}, False),
        ("cpp", "cuda", {"cuda": "13.1"}, {"cuda": "13.0"}, True),
        ("cpp", "cpu", {"cuda": "12.8"}, {"cuda": "13.0"}, True),
        ("triton", "cuda", {"triton": "2.1"}, {"triton": "3.1"}, False),
        ("triton", "cuda", {"triton": "3.9"}, {"triton": "3.1"}, True),
        ("tilelang", "cpu", {"tilelang": "2.1"}, {"tilelang": "3.1"}, False),
        ("python", "cpu", {"torch": "2.1"}, {"torch": "3.1"}, False),
        # Before the first major version the minor one counts.
        ("tilelang", "cuda", {"tilelang": "0.1.2"}, {"tilelang": "0.2"}, False),
        ("tilelang", "cuda", {"tilelang": "0.1.2"}, {"tilelang": "0.1.9"}, True),
        # What is not known is no reason.
        ("triton", "cuda", {}, {"triton": "3.1"}, True),
        ("triton", "cuda", {"triton": "3.1"}, {}, True),
        ("triton", "cuda", {"triton": "?"}, {"triton": "3.1"}, True),
    ],
)
def test_what_compiles_a_solution_must_be_of_the_same_series(language, on, recorded, here, holds):
    problem = Place("some hardware", on, here).toolchain_problem(language, recorded)
    assert (problem is None) is holds
    if problem:
        assert all(version in problem for version in recorded.values())

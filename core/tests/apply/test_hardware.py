"""What is here, and which records of elsewhere still hold."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.apply import hardware
from flashinfer_bench.apply.hardware import (
    Place,
    device_named,
    installed_versions,
    series_of,
    this_hardware,
    toolchain_problem,
    type_of_hardware,
)
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import devices


@pytest.fixture
def fresh(monkeypatch):
    """Forget what has been found out about GPUs, before and after."""
    names = hardware._gpu_names
    names.cache_clear()
    yield monkeypatch
    names.cache_clear()


class TestThisHardware:
    @pytest.mark.torch
    def test_a_cpu_is_called_as_in_traces(self):
        from flashinfer_bench.tensors.devices import env_snapshot

        assert this_hardware("cpu") == env_snapshot("cpu").hardware

    def test_a_cpu_is_recognised_by_its_name(self):
        assert type_of_hardware(this_hardware("cpu")) == "cpu"

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("CPU (2 cores)", "cpu"),
            ("Intel(R) Xeon(R) Processor (4 cores)", "cpu"),
            ("cpu", "cpu"),
            ("NVIDIA H100 80GB HBM3", "cuda"),
            ("NVIDIA GB10", "cuda"),
            ("Tesla V100-SXM2-16GB", "cuda"),
        ],
    )
    def test_names_tell_the_kind_of_device(self, name, kind):
        assert type_of_hardware(name) == kind

    def test_torch_is_not_imported_for_the_cpu(self):
        code = (
            "import sys; from flashinfer_bench.apply.hardware import *\n"
            "this_hardware('cpu'); installed_versions()\n"
            "print('torch' in sys.modules)"
        )
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert shown.stdout.strip() == "False"

    @pytest.mark.parametrize("device", ["tpu", "", "CUDA:0", "mps:1", "cuda:", "cuda:x", "cuda:-1"])
    def test_other_devices_are_refused(self, device):
        with pytest.raises(CapabilityError, match="not supported; use cpu, cuda or cuda:N"):
            device_named(device)

    @pytest.mark.parametrize("device", [0, b"cpu", ["cpu"], True])
    def test_other_things_are_no_devices(self, device):
        with pytest.raises(CapabilityError, match="not supported"):
            this_hardware(device)

    @pytest.mark.parametrize(
        ("device", "name"),
        [("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")],
    )
    def test_a_gpu_is_a_gpu_whether_there_is_one_or_not(self, device, name):
        assert device_named(device) == name

    @pytest.mark.torch
    @pytest.mark.parametrize("device", ["cpu", "cuda:1"])
    def test_torch_has_devices_of_its_own(self, device):
        import torch

        assert device_named(torch.device(device)) == device

    def test_cuda_is_the_gpu_that_somebody_has_chosen(self, fresh):
        cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 3)
        fresh.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        assert device_named("cuda") == "cuda:3"
        assert device_named("cuda:1") == "cuda:1"
        fresh.setattr(hardware, "_has_gpu", lambda: True)
        assert device_named() == "cuda:3"

    def test_hidden_gpus_are_not_used(self, fresh):
        fresh.setenv("CUDA_VISIBLE_DEVICES", "")
        assert device_named() == "cpu"
        assert this_hardware() == this_hardware("cpu")


class TestNamesOfGpus:
    """The way that does not touch CUDA, with the driver's library replaced."""

    def name_of(self, fresh, *names, visible=None):
        fresh.setattr(hardware, "_gpu_names", lambda: names)
        fresh.setattr(hardware, "_cuda_is_initialised", lambda: False)
        fresh.setattr(hardware, "_visible_gpus", lambda: 2)
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

    def test_of_gpus_that_are_not_there_torch_says_so(self, fresh):
        fresh.setattr(hardware, "_gpu_names", lambda: ("NVIDIA H200", "NVIDIA H200"))
        fresh.setattr(hardware, "_visible_gpus", lambda: 1)
        fresh.setattr(devices, "hardware_from_device", lambda device: f"asked for {device}")
        assert this_hardware("cuda:0") == "NVIDIA H200"
        assert this_hardware("cuda:1") == "asked for cuda:1"

    def test_without_a_driver_torch_says_what_is_wrong(self, fresh):
        assert self.name_of(fresh) == "torch's name of cuda:1"

    def test_where_cuda_is_up_anyway_torch_is_asked(self, fresh):
        fresh.setattr(hardware, "_gpu_names", lambda: ("NVIDIA H200",))
        cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 0)
        fresh.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        fresh.setattr(devices, "hardware_from_device", lambda device: "asked")
        assert this_hardware("cuda") == "asked"

    def test_a_missing_library_means_no_gpu(self, fresh):
        def refuse(name):
            raise OSError(name)

        fresh.setattr(hardware.ctypes, "CDLL", refuse)
        assert hardware._gpu_names() == ()

    @pytest.mark.parametrize("fails", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
    def test_a_driver_that_fails_means_no_gpu(self, fresh, fails):
        library = FakeNvml(["NVIDIA H200"], fails)
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == ()

    def test_names_are_read_off_the_driver(self, fresh):
        library = FakeNvml(["NVIDIA H200", "NVIDIA A10"])
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == ("NVIDIA H200", "NVIDIA A10")
        assert library.is_down

    @pytest.mark.parametrize("fails", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName"])
    def test_a_gpu_that_cannot_be_asked_has_no_name(self, fresh, fails):
        library = FakeNvml(["NVIDIA H200"], fails)
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == (None,)

    def test_a_divided_gpu_has_no_name(self, fresh):
        library = FakeNvml(["NVIDIA H200"], divided=True)
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == (None,)

    @pytest.mark.parametrize(("code", "name"), [(3, "NVIDIA H200"), (4, None), (999, None)])
    def test_whether_it_is_divided_must_be_known(self, fresh, code, name):
        library = FakeNvml(["NVIDIA H200"])
        library.nvmlDeviceGetMigMode = lambda *given: code
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == (name,)

    def test_where_cuda_has_a_shorter_name_torch_is_asked(self, fresh):
        library = FakeNvml(["Orin (nvgpu)"])
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: library)
        assert hardware._gpu_names() == (None,)

    @pytest.mark.parametrize(("library", "there"), [("libcuda.so.1", True), ("other", False)])
    def test_a_container_may_lack_the_library_and_have_a_gpu(self, fresh, library, there):
        def open_library(name):
            if name != library:
                raise OSError(name)

        fresh.setattr(hardware.ctypes, "CDLL", open_library)
        fresh.setattr(hardware.sys, "platform", "linux")
        fresh.delitem(sys.modules, "torch", raising=False)
        fresh.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        fresh.setattr(hardware, "installed_versions", lambda: {"cuda": "13.0"})
        fresh.setattr(hardware, "_visible_gpus", lambda: 1)
        assert hardware._has_gpu() is there

    def test_an_old_driver_lacks_functions(self, fresh):
        fresh.setattr(hardware.ctypes, "CDLL", lambda name: SimpleNamespace())
        assert hardware._gpu_names() == ()


class FakeNvml:
    """Answers as the driver's library does; the functions named in `fails` return an error."""

    def __init__(self, names, *fails, divided=False):
        self.names, self.fails, self.divided = names, fails, divided
        self.is_down = False

    def _code(self, name):
        return 1 if name in self.fails else 0

    def nvmlInit_v2(self):
        return self._code("nvmlInit_v2")

    def nvmlShutdown(self):
        self.is_down = True

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.names)
        return self._code("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return self._code("nvmlDeviceGetHandleByIndex_v2")

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        current._obj.value = int(self.divided)
        return 0

    def nvmlDeviceGetName(self, handle, name, size):
        name.value = self.names[handle.value - 1].encode()
        return self._code("nvmlDeviceGetName")


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
        fresh.setattr(hardware.importlib.util, "find_spec", lambda name: spec)
        assert hardware._torch_versions() == {"torch": "2.9.1+cu128", "cuda": "12.8"}

    @pytest.mark.parametrize("text", ["cuda: Optional[str] = None\n__version__ = '2.9'\n"])
    def test_a_build_for_the_cpu_has_no_cuda(self, fresh, tmp_path, text):
        (tmp_path / "version.py").write_text(text)
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        fresh.setattr(hardware.importlib.util, "find_spec", lambda name: spec)
        assert hardware._torch_versions() == {"torch": "2.9"}

    @pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
    def test_no_torch_is_no_version(self, fresh, spec):
        fresh.setattr(hardware.importlib.util, "find_spec", lambda name: spec)
        assert hardware._torch_versions() == {}

    def test_an_unreadable_file_is_no_version(self, fresh, tmp_path):
        spec = SimpleNamespace(origin=str(tmp_path / "absent" / "__init__.py"))
        fresh.setattr(hardware.importlib.util, "find_spec", lambda name: spec)
        assert hardware._torch_versions() == {}

    def test_a_place_has_the_libraries_that_are_here(self):
        place = Place.of("NVIDIA H200")
        assert (place.hardware, place.kind) == ("NVIDIA H200", "cuda")
        assert place.versions == installed_versions()


class TestToolchain:
    @pytest.mark.parametrize(
        ("version", "series"),
        [
            ("12.8", "12"),
            ("13.0", "13"),
            ("2.13.0+cu130", "2"),
            ("0.1.7", "0.1"),
            ("0.2", "0.2"),
            ("3.9.0 (TRITON_INTERPRET=1)", "3"),
            (" 3 ", "3"),
            ("nightly", None),
            ("", None),
        ],
    )
    def test_series(self, version, series):
        assert series_of(version) == series

    @pytest.mark.parametrize("language", ["cuda", "cpp"])
    def test_compiled_code_on_a_gpu_needs_the_major_version_of_cuda(self, language):
        here = {"cuda": "13.0", "torch": "2.9.0"}
        problem = toolchain_problem(language, {"cuda": "12.8"}, on="cuda", here=here)
        assert problem == "recorded with cuda 12.8, and here is 13.0"
        assert toolchain_problem(language, {"cuda": "13.1"}, on="cuda", here=here) is None

    def test_compiled_code_on_a_cpu_does_not_care_for_cuda(self):
        here = {"cuda": "13.0"}
        assert toolchain_problem("cpp", {"cuda": "12.8"}, on="cpu", here=here) is None

    @pytest.mark.parametrize(
        ("language", "library"),
        [("triton", "triton"), ("tilelang", "tilelang"), ("python", "torch")],
    )
    def test_each_language_has_its_library(self, language, library):
        for on in ("cpu", "cuda"):
            assert toolchain_problem(language, {library: "2.1"}, on=on, here={library: "3.1"})
            assert not toolchain_problem(language, {library: "3.9"}, on=on, here={library: "3.1"})

    @pytest.mark.parametrize("language", ["python", "triton", "mojo", "cute_dsl"])
    def test_cuda_is_no_reason_for_other_languages(self, language):
        libs = {"cuda": "11.8"}
        assert toolchain_problem(language, libs, on="cuda", here={"cuda": "13.0"}) is None

    def test_before_the_first_major_version_the_minor_one_counts(self):
        assert toolchain_problem(
            "tilelang", {"tilelang": "0.1.2"}, on="cuda", here={"tilelang": "0.2"}
        )
        here = {"tilelang": "0.1.9"}
        assert not toolchain_problem("tilelang", {"tilelang": "0.1.2"}, on="cuda", here=here)

    @pytest.mark.parametrize(
        ("recorded", "here"),
        [({}, {"triton": "3.1"}), ({"triton": "3.1"}, {}), ({"triton": "?"}, {"triton": "3.1"})],
    )
    def test_what_is_not_known_is_no_reason(self, recorded, here):
        assert toolchain_problem("triton", recorded, on="cuda", here=here) is None

    @given(
        language=st.sampled_from(["python", "cuda", "triton"]) | st.text(max_size=4),
        libs=st.dictionaries(st.sampled_from(["cuda", "torch", "triton"]), st.text(max_size=6)),
        on=st.sampled_from(["cpu", "cuda"]),
    )
    def test_the_same_versions_are_never_a_reason(self, language, libs, on):
        assert toolchain_problem(language, libs, on=on, here=libs) is None

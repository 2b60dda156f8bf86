"""Whether CUPTI can be used, with and without what it needs."""

from __future__ import annotations

import importlib
import sys

import pytest

from fib_timing_cupti.probe import check_tools, find_cupti, probe
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import Availability

VARIABLES = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")


@pytest.fixture
def install(tmp_path, monkeypatch, forgotten):
    """Return a function that puts packages where Python finds them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(version="13.0.1", packages=("cupti", "cuda/bindings")):
        for package in packages:
            (tmp_path / package).mkdir(parents=True)
            (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        info = tmp_path / f"cupti_python-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: cupti-python\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        importlib.invalidate_caches()

    return put


@pytest.fixture
def forgotten(monkeypatch):
    """Hide packages of the same names, should they be installed here."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cupti", "cuda")]:
        monkeypatch.delitem(sys.modules, name)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def gpu(monkeypatch):
    """Have core say that there is a GPU."""
    answer = Availability(True, "CUDA 13.0, 1 devices")
    monkeypatch.setattr("flashinfer_bench.bench.timing.probes.cuda_event", lambda: answer)


class TestProbe:
    def test_all_is_there(self, gpu, install):
        install()
        assert probe() == Availability(True, "cupti-python 13.0.1")

    def test_without_a_gpu_the_reason_is_core_s(self, monkeypatch, install):
        install()
        answer = Availability(False, "no NVIDIA device is found", "check the driver")
        monkeypatch.setattr("flashinfer_bench.bench.timing.probes.cuda_event", lambda: answer)
        assert probe() is answer

    @pytest.mark.parametrize("variable", VARIABLES)
    def test_a_tool_is_named_with_what_to_do(self, gpu, install, monkeypatch, variable):
        install()
        monkeypatch.setenv(variable, "/opt/tool.so")
        answer = probe()
        assert not answer
        assert variable in answer.reason
        assert "--timer cuda_event" in answer.remedy

    def test_without_the_package(self, gpu, monkeypatch):
        monkeypatch.setattr("fib_timing_cupti.probe.find_spec", lambda name: None)
        answer = probe()
        assert answer.reason == "cupti-python is not installed"
        assert "fib-timing-cupti[cupti]" in answer.remedy


class TestPackage:
    def test_its_version_is_told(self, install):
        install("13.4.0")
        assert find_cupti() == "cupti-python 13.4.0"

    def test_one_for_an_older_cuda(self, install):
        install("12.8.0")
        with pytest.raises(CapabilityError, match=r"cupti-python 12\.8\.0 is too old: 13"):
            find_cupti()

    def test_without_the_driver_s_bindings(self, install):
        install(packages=("cupti",))
        with pytest.raises(CapabilityError, match="lacks cuda-bindings"):
            find_cupti()

    def test_bindings_of_another_kind(self, install):
        install(packages=("cupti", "cuda/core"))
        with pytest.raises(CapabilityError, match="lacks cuda-bindings"):
            find_cupti()

    def test_metadata_without_the_package(self, install):
        install(packages=())
        with pytest.raises(CapabilityError, match="not installed"):
            find_cupti()


class TestTools:
    @pytest.mark.parametrize("variable", VARIABLES)
    def test_an_empty_variable_is_none(self, forgotten, monkeypatch, variable):
        monkeypatch.setenv(variable, "")
        check_tools()

    def test_nsight_systems_is_called_by_its_name(self, forgotten, monkeypatch):
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "4711")
        with pytest.raises(CapabilityError, match="Nsight Systems records"):
            check_tools()

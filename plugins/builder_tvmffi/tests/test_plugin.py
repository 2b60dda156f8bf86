"""The plugin as the host sees it."""

from __future__ import annotations

import pytest

import fib_builder_tvmffi
from fib_builder_tvmffi import probe as module
from fib_builder_tvmffi.probe import probe, probe_cuda
from fib_native_toolkit import CompiledBuilder
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import discover


@pytest.fixture
def records():
    return {spec.name: spec for spec in fib_builder_tvmffi.fib_register_builders()}


class TestRecords:
    @pytest.mark.parametrize("binding", [None, "tvm-ffi"])
    def test_what_they_handle(self, records, binding):
        assert records["tvm_ffi"].accepts("cpp", binding)
        assert records["tvm_ffi_cuda"].accepts("cuda", binding)
        assert not records["tvm_ffi"].accepts("cuda", binding)
        assert not records["tvm_ffi_cuda"].accepts("cpp", binding)

    def test_the_host_finds_it_and_it_can_be_used(self):
        chosen = discover().select_builder("cpp")
        assert chosen.distribution == "fib-builder-tvmffi"
        assert chosen.availability().ok
        assert issubclass(chosen.load(), CompiledBuilder)


class TestProbes:
    def test_cuda_too(self, nvcc, monkeypatch):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a 10.0a")
        assert probe_cuda().ok
        assert f"nvcc {nvcc.nvcc.number}, for 9.0a 10.0a" in probe_cuda().reason

    def test_without_tvm_ffi(self, monkeypatch):
        def missing():
            raise CapabilityError("apache-tvm-ffi is not installed", hint="pip install it")

        monkeypatch.setattr(module, "find_tvm_ffi", missing)
        for answer in (probe(), probe_cuda()):
            assert not answer.ok
            assert "apache-tvm-ffi is not installed" in answer.reason
            assert answer.remedy == "pip install it"

"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import fib_builder_tvmffi
from fib_builder_tvmffi import probe as module
from fib_builder_tvmffi.probe import probe, probe_cuda
from flashinfer_bench.compile import (
    BuilderRegistry,
    default_registry,
    reset_default_registry,
)
from flashinfer_bench.compile.builders import TVMFFIBuilder
from flashinfer_bench.compile.toolkit import CompiledBuilder
from flashinfer_bench.errors import BuildError, CapabilityError
from flashinfer_bench.plugins import Catalog, discover


@pytest.fixture
def records():
    return {spec.name: spec for spec in fib_builder_tvmffi.fib_register_builders()}


class TestRecords:
    def test_it_is_installed_as_a_plugin_of_its_own_distribution(self):
        (point,) = [
            point
            for point in importlib.metadata.entry_points(group="flashinfer_bench.plugins")
            if point.value == "fib_builder_tvmffi"
        ]
        assert point.name == "tvm_ffi"
        assert point.dist.name == "fib-builder-tvmffi"

    def test_its_version_is_that_of_core(self):
        version = importlib.metadata.version
        assert version("fib-builder-tvmffi") == version("flashinfer-bench-core")

    @pytest.mark.parametrize("binding", [None, "tvm-ffi"])
    def test_what_they_handle(self, records, binding):
        assert records["tvm_ffi"].accepts("cpp", binding)
        assert records["tvm_ffi_cuda"].accepts("cuda", binding)
        assert not records["tvm_ffi"].accepts("cuda", binding)
        assert not records["tvm_ffi_cuda"].accepts("cpp", binding)

    @pytest.mark.parametrize("language", ["cpp", "cuda", "python"])
    def test_what_they_do_not(self, records, language):
        for record in records.values():
            assert not record.accepts(language, "torch")

    def test_devices(self, records):
        assert records["tvm_ffi"].serves("cpu")
        assert records["tvm_ffi"].serves("cuda")
        assert not records["tvm_ffi_cuda"].serves("cpu")

    def test_they_compile_ahead(self, records):
        assert all(record.compiles for record in records.values())

    def test_the_host_finds_it_and_it_can_be_used(self):
        chosen = discover().select_builder("cpp")
        assert chosen.distribution == "fib-builder-tvmffi"
        assert chosen.availability().ok
        assert issubclass(chosen.load(), CompiledBuilder)

    def test_the_builder_by_its_old_place(self):
        assert TVMFFIBuilder().build_dir_name == "tvm_ffi"

    def test_loading_the_plugin_imports_neither_torch_nor_its_builder(self):
        code = (
            "import sys, fib_builder_tvmffi as plugin\n"
            "plugin.fib_register_builders()\n"
            "assert 'flashinfer_bench.compile' not in sys.modules\n"
            "from fib_builder_tvmffi.probe import probe, probe_cuda\n"
            "assert probe().ok\n"
            "probe_cuda()\n"
            "heavy = {'torch', 'numpy', 'tvm_ffi', 'fib_builder_tvmffi.builder'}\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"


class TestProbes:
    def test_it_says_what_is_used(self):
        assert probe().ok
        assert probe().reason.startswith("apache-tvm-ffi 0.")
        assert "c++ " in probe().reason

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

    def test_without_torch(self, monkeypatch):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
        assert "torch is not installed" in probe().reason
        assert "pip install" in probe().remedy

    def test_without_ninja(self, monkeypatch):
        find = module.find_spec
        monkeypatch.setattr(module, "which", lambda _: None)
        assert probe().ok  # the Python package brings one
        monkeypatch.setattr(
            module, "find_spec", lambda name: (name != "ninja" and find(name)) or None
        )
        assert "ninja not found" in probe().reason
        assert probe().remedy == "pip install ninja"

    def test_without_a_compiler(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert not probe().ok
        assert "c++ not found" in probe().reason
        assert "CXX" in probe().remedy

    def test_without_nvcc(self, monkeypatch):
        def missing():
            raise CapabilityError("nvcc not found: PATH", hint="Install the CUDA toolkit")

        monkeypatch.setattr(module, "find_nvcc", missing)
        assert probe().ok
        assert probe_cuda().reason == "nvcc not found: PATH"
        assert probe_cuda().remedy == "Install the CUDA toolkit"

    def test_without_a_gpu(self, nvcc, monkeypatch):
        def missing():
            raise CapabilityError("no GPU to compile for", hint="Set FIB_CUDA_ARCH_LIST")

        monkeypatch.setattr(module, "cuda_architectures", missing)
        answer = probe_cuda()
        assert not answer.ok
        assert answer.reason == (
            f"nvcc {nvcc.nvcc.number} is here, but no GPU, and FIB_CUDA_ARCH_LIST is not set"
        )
        assert answer.remedy == "Set FIB_CUDA_ARCH_LIST"

    def test_architectures_that_are_none(self, nvcc, monkeypatch):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "hopper")
        assert not probe_cuda().ok
        assert "'hopper' is no compute capability" in probe_cuda().reason


class TestRegistry:
    def test_the_shared_one_builds_with_it(self, definition, make_solution, inputs):
        reset_default_registry()
        try:
            registry = default_registry()
            runnable = registry.build(definition, make_solution())
            assert runnable.metadata.build_type == "tvm_ffi"
            x, y, scale = inputs
            assert runnable.call_value_returning(*inputs).equal((x + y) * scale)
        finally:
            reset_default_registry()

    def test_it_compiles_ahead(self, records, definition, make_solution, empty_cache):
        registry = BuilderRegistry.from_catalog(Catalog.of(records["tvm_ffi"]))
        assert registry.compile(definition, make_solution()).fresh
        assert not registry.compile(definition, make_solution()).fresh
        assert not registry.build(definition, make_solution()).metadata.misc["fresh"]
        registry.cleanup()

    def test_cuda_is_not_for_the_cpu(self, records, definition, make_solution):
        catalog = Catalog.of(*records.values())
        registry = BuilderRegistry.from_catalog(catalog, device="cpu")
        with pytest.raises(BuildError, match="cuda"):
            registry.build(definition, make_solution(language="cuda"))

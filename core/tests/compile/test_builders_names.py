from __future__ import annotations

import sys
from types import ModuleType

import pytest

import flashinfer_bench.compile.builders as builders
from flashinfer_bench.errors import FibDeprecationWarning


def test_a_builder_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.startswith("fib_builder_")]:
        monkeypatch.delitem(sys.modules, name)
    for name in builders.__all__:
        told = f"{name} is provided by .* is not installed; .*pip install .* fib-builder-"
        with pytest.raises(ImportError, match=told):
            getattr(builders, name)


def test_an_installed_builder_is_found_by_the_name_of_its_class(monkeypatch):
    module = ModuleType("fib_builder_triton.builder")
    module.TritonBuilder = object
    monkeypatch.setitem(sys.modules, "fib_builder_triton", ModuleType("fib_builder_triton"))
    monkeypatch.setitem(sys.modules, "fib_builder_triton.builder", module)
    from flashinfer_bench.compile.builders import TritonBuilder

    assert TritonBuilder is object


def test_a_builder_that_cannot_be_imported_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "fib_builder_triton", ModuleType("fib_builder_triton"))
    monkeypatch.setitem(sys.modules, "fib_builder_triton.builder", None)
    with pytest.raises(ImportError, match=r"fib_builder_triton\.builder"):
        _ = builders.TritonBuilder


def test_the_old_name_of_the_torch_builder_warns(monkeypatch):
    module = ModuleType("fib_builder_cuda_torch.builder")
    module.TorchBuilder = object
    for name in ("fib_builder_cuda_torch", "fib_builder_cuda_torch.builder"):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.warns(FibDeprecationWarning, match="now called TorchBuilder"):
        assert builders.CUDABuilder is object

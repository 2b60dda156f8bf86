import sys
from types import ModuleType

import pytest

import flashinfer_bench.compile.builders as builders


def test_a_builder_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.startswith("fib_builder_")]:
        monkeypatch.delitem(sys.modules, name)
    for name in builders.__all__:
        told = f"{name} is provided by .* is not installed; .*pip install .* fib-builder-"
        with pytest.raises(ImportError, match=told):
            getattr(builders, name)


def test_a_builder_that_cannot_be_imported_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "fib_builder_triton", ModuleType("fib_builder_triton"))
    monkeypatch.setitem(sys.modules, "fib_builder_triton.builder", None)
    with pytest.raises(ImportError, match=r"fib_builder_triton\.builder"):
        _ = builders.TritonBuilder

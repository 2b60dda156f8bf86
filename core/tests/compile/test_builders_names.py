from __future__ import annotations

import sys

import pytest

import flashinfer_bench.compile.builders as builders
from flashinfer_bench.compile import Builder
from flashinfer_bench.errors import FibDeprecationWarning
from flashinfer_bench.plugins import BuilderSpec, Catalog, reset_default_catalog


@pytest.fixture
def catalog():
    """Return a function that makes its records the only ones of this process."""
    yield lambda *records: reset_default_catalog(Catalog.of(*records))
    reset_default_catalog()


def spec(factory: str, name: str = "triton") -> BuilderSpec:
    return BuilderSpec(name=name, handles=(("triton", None),), factory=factory)


def test_a_builder_that_is_not_installed_says_what_to_install(catalog):
    catalog()
    for name in builders.__all__:
        with pytest.raises(ImportError, match=f"{name} comes with .*: pip install fib-builder-"):
            getattr(builders, name)


def test_an_installed_builder_is_found_by_the_name_of_its_class(catalog, tmp_path, monkeypatch):
    (tmp_path / "fib_names_test.py").write_text(
        "from flashinfer_bench.compile import Builder\n"
        "class TritonBuilder(Builder):\n"
        "    def can_build(self, solution): return True\n"
        "    def build(self, definition, solution): raise NotImplementedError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    catalog(spec("fib_names_test:TritonBuilder", "whatever"))
    from flashinfer_bench.compile.builders import TritonBuilder

    assert issubclass(TritonBuilder, Builder)
    sys.modules.pop("fib_names_test")


def test_a_builder_that_cannot_be_loaded_says_why(catalog):
    catalog(spec("no_such_module_xyz:TritonBuilder"))
    with pytest.raises(ImportError, match=r"TritonBuilder cannot be loaded: .*no_such_module_xyz"):
        _ = builders.TritonBuilder


def test_the_old_name_of_the_torch_builder_warns(catalog):
    catalog()
    with (
        pytest.warns(FibDeprecationWarning, match="now called TorchBuilder"),
        pytest.raises(ImportError, match="fib-builder-cuda-torch"),
    ):
        _ = builders.CUDABuilder

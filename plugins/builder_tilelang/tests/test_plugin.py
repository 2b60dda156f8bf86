"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

import fib_builder_tilelang
from flashinfer_bench.compile import Builder, BuilderRegistry
from flashinfer_bench.plugins import Catalog, discover

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def record():
    (spec,) = fib_builder_tilelang.fib_register_builders()
    return spec


def test_it_is_installed_as_a_plugin_of_its_own_distribution():
    (point,) = [
        point
        for point in importlib.metadata.entry_points(group="flashinfer_bench.plugins")
        if point.value == "fib_builder_tilelang"
    ]
    assert point.name == "tilelang"
    assert point.dist.name == "fib-builder-tilelang"


def test_its_version_is_that_of_core():
    assert importlib.metadata.version("fib-builder-tilelang") == importlib.metadata.version(
        "flashinfer-bench-core"
    )


def test_the_host_finds_it_and_it_can_be_used():
    chosen = discover().select_builder("tilelang")
    assert chosen.distribution == "fib-builder-tilelang"
    assert chosen.availability().ok
    assert issubclass(chosen.load(), Builder)


def test_the_shared_class_is_reachable_by_its_name():
    from fib_builder_tilelang.builder import TileLangBuilder
    from flashinfer_bench.compile import builders

    assert builders.TileLangBuilder is TileLangBuilder


@pytest.mark.parametrize("binding", [None, "torch", "tvm-ffi"])
def test_a_binding_means_nothing_to_it(record, binding):
    assert record.accepts("tilelang", binding)


@pytest.mark.parametrize("language", ["python", "triton", "cuda", "tile-lang"])
def test_other_languages_are_not_its_business(record, language):
    assert not record.accepts(language)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_serves_every_device(record, device):
    assert Catalog.of(record).select_builder("tilelang", device=device).name == "tilelang"


def test_its_solutions_are_not_built_ahead(record):
    assert not record.compiles


def test_loading_the_plugin_imports_neither_torch_nor_its_builder(in_child):
    code = (
        "import sys, fib_builder_tilelang as plugin\n"
        "plugin.fib_register_builders()\n"
        "heavy = {'torch', 'tilelang', 'tvm_ffi', 'pydantic', 'fib_builder_tilelang.builder'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert in_child(code) == "[]\n"


def test_its_probe_imports_neither_torch_nor_tilelang(in_child):
    code = (
        "import sys\n"
        "from fib_builder_tilelang.probe import probe\n"
        "assert probe().ok\n"
        "print(sorted({'torch', 'numpy', 'tilelang', 'tvm', 'tvm_ffi'} & set(sys.modules)))\n"
    )
    assert in_child(code) == "[]\n"


def test_the_registry_builds_with_it(record, definition, make_solution, inputs):
    registry = BuilderRegistry.from_catalog(Catalog.of(record), device="cpu")
    runnable = registry.build(definition, make_solution())
    x, y, scale = inputs
    assert runnable(*inputs).equal((x + y) * scale)
    assert runnable.metadata.build_type == "tilelang"
    registry.cleanup()


def test_the_example_of_the_readme_runs(tmp_path, in_child):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    printed = in_child(f"import runpy; runpy.run_path({str(example)!r})")
    assert printed.endswith("<Runnable 'scale_tilelang': tilelang>\n")

"""The plugin as the host sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fib_builder_tilelang
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.plugins import Catalog

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def record():
    (spec,) = fib_builder_tilelang.fib_register_builders()
    return spec


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

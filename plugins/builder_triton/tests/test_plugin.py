"""The plugin as the host sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fib_builder_triton
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.plugins import Catalog

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def records():
    return {spec.name: spec for spec in fib_builder_triton.fib_register_builders()}


class TestSelection:
    """Which of the two is taken, for which device."""

    @pytest.fixture
    def catalog(self, records):
        return Catalog.of(*records.values(), distribution="fib-builder-triton", version="0.2.0")

    def test_the_registry_builds_with_it(
        self, catalog, interpreted, definition, make_solution, inputs
    ):
        registry = BuilderRegistry.from_catalog(catalog, device="cpu")
        runnable = registry.build(definition, make_solution())
        x, y, scale = inputs
        assert runnable(*inputs).equal((x + y) * scale)
        assert runnable.metadata.build_type == "triton"
        registry.cleanup()


def test_the_example_of_the_readme_runs(tmp_path, cache_folder, in_child):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    done = in_child(f"import runpy; runpy.run_path({str(example)!r})", TRITON_INTERPRET="1")
    assert done.stdout == "<Runnable 'scale_triton': triton> True\n"

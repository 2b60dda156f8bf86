"""The plugin as the host sees it."""

from pathlib import Path

import pytest

import fib_builder_triton
from fib_tests.scaled_add import run_example
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.plugins import Catalog

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.usefixtures("interpreted")
def test_of_the_two_records_the_registry_takes_the_one_for_the_device(
    definition, make_solution, inputs
):
    records = fib_builder_triton.fib_register_builders()
    catalog = Catalog.of(*records, distribution="fib-builder-triton", version="0.2.0")
    registry = BuilderRegistry.from_catalog(catalog, device="cpu")
    runnable = registry.build(definition, make_solution())
    x, y, scale = inputs
    assert runnable(*inputs).equal((x + y) * scale)
    assert runnable.metadata.build_type == "triton"
    registry.cleanup()


def test_the_example_of_the_readme_runs(tmp_path):
    done = run_example(README, tmp_path, TRITON_INTERPRET="1")
    assert done.stdout == "<Runnable 'scale_triton': triton> True\n"

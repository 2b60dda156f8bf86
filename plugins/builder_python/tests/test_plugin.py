"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

import fib_builder_python
from fib_builder_python.probe import probe
from flashinfer_bench.compile import Builder, default_registry, reset_default_registry
from flashinfer_bench.plugins import discover


@pytest.fixture
def record():
    (spec,) = fib_builder_python.fib_register_builders()
    return spec


def test_the_host_finds_it_and_it_can_be_used():
    catalog = discover()
    chosen = catalog.select_builder("python")
    assert chosen.distribution == "fib-builder-python"
    assert chosen.availability().ok
    assert issubclass(chosen.load(), Builder)


@pytest.mark.parametrize("binding", [None, "torch", "tvm-ffi"])
def test_a_binding_means_nothing_to_python(record, binding):
    assert record.accepts("python", binding)


def test_the_probe_says_which_python():
    assert probe().ok
    assert probe().reason.startswith("Python 3.")


def test_without_torch_the_probe_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "flashinfer_bench.compile.machine.find_spec",
        lambda name: None if name == "torch" else find(name),
    )
    answer = probe()
    assert not answer.ok
    assert "torch is not installed" in answer.reason
    assert "pip install" in answer.remedy


def test_the_shared_registry_builds_with_it(definition, make_solution, inputs):
    reset_default_registry()
    try:
        registry = default_registry()
        runnable = registry.build(definition, make_solution())
        reference = registry.build_reference(definition)
        assert runnable.metadata.build_type == "python"
        assert runnable(*inputs).equal(reference(*inputs))
    finally:
        reset_default_registry()

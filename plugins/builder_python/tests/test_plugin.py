"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

import fib_builder_python
from fib_builder_python.probe import probe
from flashinfer_bench.compile import Builder, default_registry, reset_default_registry
from flashinfer_bench.plugins import discover


@pytest.fixture
def record():
    (spec,) = fib_builder_python.fib_register_builders()
    return spec


def test_it_is_installed_as_a_plugin_of_its_own_distribution():
    (point,) = [
        point
        for point in importlib.metadata.entry_points(group="flashinfer_bench.plugins")
        if point.value == "fib_builder_python"
    ]
    assert point.name == "python"
    assert point.dist.name == "fib-builder-python"


def test_its_version_is_that_of_core():
    assert importlib.metadata.version("fib-builder-python") == importlib.metadata.version(
        "flashinfer-bench-core"
    )


def test_the_host_finds_it_and_it_can_be_used():
    catalog = discover()
    chosen = catalog.select_builder("python")
    assert chosen.distribution == "fib-builder-python"
    assert chosen.availability().ok
    assert issubclass(chosen.load(), Builder)


@pytest.mark.parametrize("binding", [None, "torch", "tvm-ffi"])
def test_a_binding_means_nothing_to_python(record, binding):
    assert record.accepts("python", binding)


@pytest.mark.parametrize("language", ["triton", "cuda", "cpp", "Python3"])
def test_other_languages_are_not_its_business(record, language):
    assert not record.accepts(language)


def test_loading_the_plugin_imports_neither_torch_nor_its_builder():
    code = (
        "import sys, fib_builder_python as plugin\n"
        "plugin.fib_register_builders()\n"
        "from fib_builder_python.probe import probe\n"
        "assert probe().ok\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'fib_builder_python.builder'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_probe_says_which_python():
    assert probe().ok
    assert probe().reason.startswith("Python 3.")


def test_without_torch_the_probe_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "fib_builder_python.probe.find_spec",
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

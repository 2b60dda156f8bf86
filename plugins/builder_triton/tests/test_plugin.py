"""The plugin as the host sees it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fib_builder_triton
from flashinfer_bench.compile import Builder, BuilderRegistry
from flashinfer_bench.errors import BuildError
from flashinfer_bench.plugins import Catalog, discover

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def records():
    return {spec.name: spec for spec in fib_builder_triton.fib_register_builders()}


def test_it_is_installed_as_a_plugin_of_its_own_distribution():
    (point,) = [
        point
        for point in importlib.metadata.entry_points(group="flashinfer_bench.plugins")
        if point.value == "fib_builder_triton"
    ]
    assert point.name == "triton"
    assert point.dist.name == "fib-builder-triton"


def test_its_version_is_that_of_core():
    assert importlib.metadata.version("fib-builder-triton") == importlib.metadata.version(
        "flashinfer-bench-core"
    )


def test_it_does_not_pull_triton_in():
    required = importlib.metadata.requires("fib-builder-triton")
    assert [line for line in required if "triton" in line and "extra" not in line] == []
    assert any(re.match(r"triton\b.*extra == .triton.", line) for line in required)


def test_the_host_finds_both_records(records):
    found = {entry.name: entry for entry in discover().builders}
    assert set(records) == {"triton", "triton_interpreter"} <= set(found)
    for name in records:
        assert found[name].distribution == "fib-builder-triton"
        assert issubclass(found[name].load(), Builder)


def test_each_record_is_for_one_kind_of_device(records):
    assert records["triton"].devices == ("cuda",)
    assert records["triton_interpreter"].devices == ("cpu",)
    assert records["triton"].priority > records["triton_interpreter"].priority


@pytest.mark.parametrize("binding", [None, "torch", "tvm-ffi"])
def test_a_binding_means_nothing_to_triton(records, binding):
    assert all(record.accepts("triton", binding) for record in records.values())


@pytest.mark.parametrize("language", ["python", "cuda", "tilelang", "Triton2"])
def test_other_languages_are_not_its_business(records, language):
    assert not any(record.accepts(language) for record in records.values())


def test_its_solutions_are_not_built_ahead(records):
    assert not any(record.compiles for record in records.values())


def test_loading_the_plugin_imports_neither_torch_nor_its_builder(in_child):
    code = (
        "import sys, fib_builder_triton as plugin\n"
        "plugin.fib_register_builders()\n"
        "heavy = {'torch', 'numpy', 'triton', 'pydantic', 'fib_builder_triton.builder'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert in_child(code).stdout == "[]\n"


def test_its_probes_import_neither_torch_nor_triton(in_child):
    code = (
        "import sys\n"
        "from fib_builder_triton.probe import probe, probe_interpreter\n"
        "probe(), probe_interpreter()\n"
        "print(sorted({'torch', 'numpy', 'triton'} & set(sys.modules)))\n"
    )
    assert in_child(code).stdout == "[]\n"
    assert in_child(code, TRITON_INTERPRET="1").stdout == "[]\n"


def test_the_shared_class_is_reachable_by_its_name():
    from fib_builder_triton.builder import TritonBuilder
    from flashinfer_bench.compile import builders

    assert builders.TritonBuilder is TritonBuilder


class TestSelection:
    """Which of the two is taken, for which device."""

    @pytest.fixture
    def catalog(self, records):
        return Catalog.of(*records.values(), distribution="fib-builder-triton", version="0.2.0")

    def test_on_the_cpu_it_is_the_interpreter(self, catalog, interpreted):
        assert catalog.select_builder("triton", device="cpu").name == "triton_interpreter"

    def test_the_registry_builds_with_it(
        self, catalog, interpreted, definition, make_solution, inputs
    ):
        registry = BuilderRegistry.from_catalog(catalog, device="cpu")
        runnable = registry.build(definition, make_solution())
        x, y, scale = inputs
        assert runnable(*inputs).equal((x + y) * scale)
        assert runnable.metadata.build_type == "triton"
        registry.cleanup()

    def test_the_interpreter_is_never_taken_for_a_gpu(
        self, catalog, interpreted, definition, make_solution
    ):
        registry = BuilderRegistry.from_catalog(catalog, device="cuda")
        with pytest.raises(BuildError, match="TRITON_INTERPRET is set"):
            registry.build(definition, make_solution())

    def test_without_the_variable_the_message_names_it(self, catalog, definition, make_solution):
        registry = BuilderRegistry.from_catalog(catalog, device="cpu")
        with pytest.raises(BuildError, match="TRITON_INTERPRET is not set") as caught:
            registry.build(definition, make_solution())
        assert "TRITON_INTERPRET=1 runs kernels on the CPU" in caught.value.hint


def test_the_example_of_the_readme_runs(tmp_path, cache_folder, in_child):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    done = in_child(f"import runpy; runpy.run_path({str(example)!r})", TRITON_INTERPRET="1")
    assert done.stdout == "<Runnable 'scale_triton': triton> True\n"


def test_it_starts_without_torch_or_triton():
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'triton', 'numpy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from fib_builder_triton.builder import TritonBuilder\n"
        "print(TritonBuilder().build_dir_name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "triton\n"

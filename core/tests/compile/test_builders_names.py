from __future__ import annotations

import subprocess
import sys

import pytest

import flashinfer_bench.compile.builders as builders
from flashinfer_bench.compile import Builder, reference_solution
from flashinfer_bench.errors import FibDeprecationWarning
from flashinfer_bench.plugins import BuilderSpec, Catalog, reset_default_catalog

NAMES = ["PythonBuilder", "TritonBuilder", "TileLangBuilder", "TVMFFIBuilder", "TorchBuilder"]


@pytest.fixture
def catalog():
    """Return a function that makes its records the only ones of this process."""
    yield lambda *records: reset_default_catalog(Catalog.of(*records))
    reset_default_catalog()


def spec(factory: str, name: str = "triton") -> BuilderSpec:
    return BuilderSpec(name=name, handles=(("triton", None),), factory=factory)


@pytest.mark.parametrize("name", NAMES)
def test_a_builder_that_is_not_installed_says_what_to_install(catalog, name):
    catalog()
    distribution = builders._BUILDERS[name][1]
    with pytest.raises(ImportError, match=f"pip install {distribution}") as caught:
        getattr(builders, name)
    assert name in str(caught.value)


def test_the_import_statement_shows_the_same_message(catalog):
    catalog()
    with pytest.raises(ImportError, match="pip install fib-builder-triton"):
        from flashinfer_bench.compile.builders import TritonBuilder  # noqa: F401


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


def test_a_builder_of_that_record_with_another_class_is_told(catalog):
    catalog(spec("json:JSONDecoder"))
    with pytest.raises(ImportError, match="'triton' has no class TritonBuilder"):
        _ = builders.TritonBuilder


def test_the_old_name_of_the_torch_builder_warns(catalog):
    catalog()
    with (
        pytest.warns(FibDeprecationWarning, match="now called TorchBuilder"),
        pytest.raises(ImportError, match="fib-builder-cuda-torch"),
    ):
        _ = builders.CUDABuilder


def test_any_other_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="RustBuilder"):
        _ = builders.RustBuilder
    assert not hasattr(builders, "RustBuilder")


def test_the_names_can_be_listed_without_loading_anything(catalog):
    catalog(spec("no_such_module_xyz:TritonBuilder"))
    assert dir(builders) == sorted(NAMES)
    assert sorted(builders.__all__) == sorted(NAMES)


def test_importing_the_module_discovers_no_plugin():
    code = (
        "import sys, flashinfer_bench.compile.builders\n"
        "print([m for m in sys.modules if m.startswith('fib_') or m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.plugin("python")
def test_the_python_builder_is_there_where_its_plugin_is():
    from flashinfer_bench.compile.builders import PythonBuilder

    assert PythonBuilder.__module__ == "fib_builder_python.builder"


class TestReference:
    def test_it_is_a_python_solution_that_returns_its_outputs(self, definition):
        solution = reference_solution(definition)
        assert solution.definition == definition.name
        assert solution.spec.language == "python"
        assert solution.spec.destination_passing_style is False
        assert solution.get_entry_symbol() == "run"
        assert solution.get_entry_source().content == definition.reference

    def test_it_cannot_be_mistaken_for_a_solution_of_the_dataset(self, definition):
        assert reference_solution(definition).name == "add_k4__reference"
        assert reference_solution(definition).author == "flashinfer_bench"

    def test_two_references_are_two_solutions(self, make_definition):
        other = make_definition(reference="def run(x, y):\n    return y + x\n")
        assert reference_solution(make_definition()).hash() != reference_solution(other).hash()

"""Names of earlier releases: modules, what is in them, parameters; each is asked for."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

import flashinfer_bench
from flashinfer_bench import compat
from flashinfer_bench.apply import ApplyConfig, ApplyConfigRegistry, ApplyRuntime, ApplyTable
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.compat.table import ATTRIBUTES, MODULES, NAMES, OBSOLETE, PARAMETERS
from flashinfer_bench.data import (
    Definition,
    Solution,
    TraceSet,
    Workload,
    from_json,
    load_jsonl_file,
    save_jsonl_file,
)
from flashinfer_bench.errors import FibDeprecationWarning

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"


@pytest.mark.filterwarnings("ignore::flashinfer_bench.errors.FibDeprecationWarning")
@pytest.mark.parametrize("module", MODULES)
def test_each_module_of_the_table_has_all_its_names(module: str) -> None:
    there = import_module(f"flashinfer_bench.{module}")
    names = dir(there)
    assert names
    assert all(getattr(there, name) is not None for name in names)
    assert there.__all__ == names
    with pytest.raises(AttributeError, match="nothing_like_it"):
        there.nothing_like_it  # noqa: B018


@pytest.mark.filterwarnings("ignore::flashinfer_bench.errors.FibDeprecationWarning")
@pytest.mark.parametrize("module", NAMES)
def test_each_name_of_the_table_can_be_had(module: str) -> None:
    full = f"flashinfer_bench.{module}"
    for name in compat.names_of(full):
        assert getattr(import_module(full), name) is not None


def test_a_star_import_of_an_old_module() -> None:
    found: dict[str, object] = {}
    exec("from flashinfer_bench.bench.runner import *", found)
    assert {"Runner", "RunnerError", "DeviceBaseline"} <= found.keys()


def test_what_is_obsolete_says_what_is_to_be_written() -> None:
    module = import_module("flashinfer_bench.compile.builders.cuda_builder")
    with pytest.warns(
        FibDeprecationWarning, match="CUDABuilder is now called TorchBuilder"
    ) as caught:
        module.CUDABuilder  # noqa: B018
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_module("flashinfer_bench.integration.patch_manager").PatchManager  # noqa: B018
    assert all(name.rpartition(".")[0] in {*MODULES, *NAMES} for name in OBSOLETE)


def test_the_page_on_compatibility_names_all_of_the_table() -> None:
    page = PAGE.read_text()
    modules = {f"| `{module}` |" for module in {*MODULES, *NAMES}}
    parameters = {
        f"| `{path.partition(':')[2]}` | `{old}` | {f'`{new}`' if new else 'nothing'} |"
        for path, entries in PARAMETERS.items()
        for old, _, new in (entry.partition("=") for entry in entries.split())
    }
    attributes = {
        f"| `{path.partition(':')[2]}` | `{entry.partition('=')[0]}` |"
        for path, entries in ATTRIBUTES.items()
        for entry in entries.split()
    }
    assert [line for line in sorted(modules | parameters | attributes) if line not in page] == []


def test_names_that_never_were() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("flashinfer_bench.tracer.nothing")
    with pytest.raises(AttributeError, match="module 'flashinfer_bench' has no attribute 'nope'"):
        flashinfer_bench.nope  # noqa: B018


def test_a_missing_plugin_is_named() -> None:
    program = """
import sys

class Gone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "fib_ops_llm":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Gone)
from flashinfer_bench.bench import evaluators
assert not hasattr(evaluators, "nothing_like_it")
from flashinfer_bench.tracer import Tracer
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "fib-ops-llm==" in done.stderr


def test_nothing_is_imported_for_old_names_before_one_is_asked_for() -> None:
    program = (
        "import sys, flashinfer_bench.apply, flashinfer_bench.data\n"
        "print([name for name in sys.modules if 'flashinfer_bench.compat' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# ---------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("path", PARAMETERS)
def test_parameters_of_the_table_are_those_of_functions(path: str) -> None:
    module, _, attributes = path.partition(":")
    found = import_module(module if module.startswith("fib_") else f"flashinfer_bench.{module}")
    for name in attributes.split("."):
        found = getattr(found, name)
    new = {one.partition("=")[2] for one in PARAMETERS[path].split()}
    assert new - {""} <= inspect.signature(found).parameters.keys()


def test_calls_by_old_names(tmp_path) -> None:
    definition = Definition(
        name="double",
        op_type="op",
        axes={"n": {"type": "var"}},
        inputs={"x": {"shape": ["n"], "dtype": "float32"}},
        outputs={"y": {"shape": ["n"], "dtype": "float32"}},
        reference="def run(x):\n    return x * 2\n",
    )
    assert definition.get_input_shapes(var_values={"n": 3}) == [(3,)]
    assert definition.get_output_shapes(var_values={"n": 3}) == [(3,)]
    again = from_json(json_str=definition.model_dump_json(), cls=Definition)
    assert again == definition
    save_jsonl_file(objects=[definition], path=tmp_path / "some.jsonl")
    assert load_jsonl_file(Definition, tmp_path / "some.jsonl") == [definition]
    x = torch.ones(3)
    assert time_runnable(torch.neg, inputs=[x], warmup=1, iters=2, device="cpu") > 0

    apply = flashinfer_bench.apply

    def call(**named: object) -> object:
        return apply(def_name_or_resolver="double", runtime_kwargs={"x": x}, **named)

    assert call(fallback=lambda x: x + 1).equal(x + 1)
    trace_set = TraceSet(definitions={"double": definition})
    runtime = ApplyRuntime(traceset=trace_set, apply_config=ApplyConfig())
    given = {"def_name": "double", "runtime_kwargs": {"x": x}}
    assert runtime.dispatch(**given, fallback=lambda x: x + 1).equal(x + 1)
    runtime.rebuild(traceset=trace_set)
    assert not ApplyTable.load_or_build(ts=trace_set).problems
    registry = ApplyConfigRegistry().register(def_name="a", config=ApplyConfig())
    assert registry.get(def_name="a") == ApplyConfig()


class TestTwoNamesOfOneParameter:
    def test_both_by_name(self) -> None:
        with pytest.raises(TypeError, match="'name_or_resolver' and 'def_name_or_resolver'"):
            flashinfer_bench.apply(name_or_resolver="a", def_name_or_resolver="b", args=())
        with pytest.raises(TypeError, match="'name' and 'def_name'"):
            ApplyConfigRegistry().register(name="a", def_name="b", config=ApplyConfig())

    def test_one_by_its_place(self) -> None:
        with pytest.raises(TypeError, match="'name' and 'def_name'"):
            ApplyConfigRegistry().register("a", def_name="b", config=ApplyConfig())

    def test_what_is_no_parameter_at_all(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
            flashinfer_bench.apply("a", nope=1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
            ApplyConfigRegistry().register(def_name="a", config=ApplyConfig(), nope=1)

    def test_an_error_in_the_function_is_its_own(self) -> None:
        def fails(x: object) -> None:
            raise TypeError("mine")

        with pytest.raises(TypeError, match=r"^mine$"):
            time_runnable(fails, inputs=[1], warmup=1, iters=1, device="cpu")


def test_old_functions(tmp_path) -> None:
    builder = import_module("flashinfer_bench.compile.builder")
    solution = Solution(
        name="a b",
        definition="double",
        author="me",
        spec={"language": "python", "target_hardware": ["cpu"], "entry_point": "m.py::run"},
        sources=[{"path": "m.py", "content": "def run(x): return x\n"}],
    )
    assert builder.create_pkg_name(solution, "fib_").startswith("fib_a_b_")
    builder.write_sources_to_dir(str(tmp_path / "one"), solution.sources)
    folder = builder.write_sources_to_temp(str(tmp_path / "two"), solution.sources, pkg="pkg")
    assert (tmp_path / "one" / "m.py").read_text() == solution.sources[0].content
    assert folder.endswith("/pkg")
    assert Workload(axes={"n": 1}, inputs={}, uuid="u").axes == {"n": 1}

"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import sys

import pytest
import torch

from fib_builder_cuda_torch import loading, scan
from fib_builder_cuda_torch.builder import TorchBuilder
from flashinfer_bench.bench.executors.base import CandidateCrashed
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.errors import BuildError, CapabilityError


@pytest.fixture
def refused_once_compiled(build):
    """Return a function that builds a solution that cannot be built and returns the error."""

    def run(solution, of=None) -> BuildError:
        modules = set(sys.modules)
        with pytest.raises(BuildError) as caught:
            build(solution, of)
        assert set(sys.modules) == modules
        assert f"solution {solution.name!r}" in str(caught.value)
        return caught.value

    return run


@pytest.fixture
def refused(refused_once_compiled, own_cache):
    """Return the same function, for builds that leave nothing in the cache."""

    def run(solution, of=None) -> BuildError:
        error = refused_once_compiled(solution, of)
        assert not [path for path in own_cache.rglob("*") if ".partial-" in path.name]
        return error

    return run


class TestLoading:
    def test_a_symbol_that_nobody_defines(self, refused, make_solution, source):
        text = "int missing_part();\n#define VALUE missing_part()\n" + source("bare.cpp")
        error = refused(make_solution(files={"main.cpp": text}))
        assert "loading the library failed: undefined symbol: missing_part()" in str(error)
        assert "Is a source file missing" in error.hint

    @pytest.mark.parametrize(
        ("statement", "reason"),
        [
            ('PyErr_SetString(PyExc_ValueError, "no GPU"); return nullptr;', "ValueError: no GPU"),
            ("PyErr_SetNone(PyExc_SystemExit); return nullptr;", "SystemExit"),
            ("return nullptr;", "SystemError"),
        ],
    )
    def test_a_module_that_does_not_start(self, refused, make_solution, source, statement, reason):
        text = source("bare.cpp").replace(
            "return PyModule_Create", f"{statement}\nreturn PyModule_Create"
        )
        error = refused(make_solution(files={"main.cpp": text}))
        assert "loading the library failed" in str(error)
        assert reason in str(error)

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("-> Tensor", "-> ", "expected"),  # a schema that is none
            ("m.def(", 'm.def("run() -> ()"); m.def(', "multiple times"),
            ("m.def(", 'throw std::runtime_error("no luck"); m.def(', "no luck"),
        ],
    )
    def test_operators_that_cannot_be_registered_end_only_the_process_that_loads_them(
        self, make_solution, source, definition, own_cache, old, new, reason
    ):
        text = "#include <stdexcept>\n" + source("returns.cpp").replace(old, new)
        executor = ForkExecutor("cpu")
        try:
            executor.start()
            candidate = executor.spawn()
            with pytest.raises(CandidateCrashed, match="SIGABRT") as caught:
                candidate.load(definition, make_solution(files={"main.cpp": text}), timeout_s=120)
            assert caught.value.stage == "load"
            assert reason in candidate.log()
        finally:
            executor.close()

    def test_a_library_without_module_and_operators(self, refused, make_solution):
        error = refused(make_solution(files={"main.cpp": "int run() { return 1; }\n"}))
        assert "has neither a Python module nor operators" in str(error)
        assert "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)" in error.hint


def test_a_symbol_that_is_not_among_the_operators(refused_once_compiled, make_solution):
    error = refused_once_compiled(make_solution("returns.cpp", entry="returns.cpp::runs"))
    assert "returns.cpp defines no 'runs'" in str(error)
    assert error.hint == "Did you mean 'run'?"


@pytest.mark.parametrize(("kind", "style"), [("returns.cpp", True), ("writes.cpp", False)])
def test_a_stated_convention_that_does_not_fit(refused_once_compiled, make_solution, kind, style):
    error = refused_once_compiled(make_solution(kind, destination_passing_style=style))
    assert f"set destination_passing_style to {str(not style).lower()}" in error.hint


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
@pytest.mark.parametrize("files", [{"a.cu": "//"}, {"a.cpp": "//", "b.cu": ""}])
def test_cuda_with_a_torch_that_has_none(make_solution, definition, own_cache, files):
    with pytest.raises(CapabilityError, match=r"torch \S+ is built without CUDA"):
        TorchBuilder().build(definition, make_solution(files=files))


def test_what_is_no_library(tmp_path):
    path = tmp_path / "name.so"
    path.write_bytes(b"text")
    with pytest.raises(BuildError, match="file too short"):
        loading.load_library(path, "s")


class TestOperators:
    @pytest.mark.parametrize(
        "text",
        [
            "TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {}",
            "STABLE_TORCH_LIBRARY ( TORCH_EXTENSION_NAME , m ) {}",
            "#define NAME TORCH_EXTENSION_NAME\nTORCH_LIBRARY(NAME, m) {}",
            "#define LIBRARY(name, m) \\\n  TORCH_LIBRARY(name, m)\n"
            "LIBRARY(TORCH_EXTENSION_NAME, m) {}",
            "TORCH_LIBRARY_IMPL(aten, CPU, m) {}",
            "TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) {}",
        ],
    )
    def test_names_that_are_the_builds(self, make_solution, text):
        scan.check_names(make_solution(files={"main.cpp": text}))

    @pytest.mark.parametrize(
        ("text", "macro"),
        [
            ("TORCH_LIBRARY(my_ops, m) {}", "TORCH_LIBRARY"),
            ("TORCH_LIBRARY_FRAGMENT(my_ops, m) {}", "TORCH_LIBRARY_FRAGMENT"),
            ("STABLE_TORCH_LIBRARY(\n  my_ops, m) {}", "STABLE_TORCH_LIBRARY"),
            ("#define my_ops more\nTORCH_LIBRARY(my_ops, m) {}", "TORCH_LIBRARY"),
        ],
    )
    def test_names_of_their_own(self, refused, make_solution, text, macro):
        error = refused(make_solution(files={"main.cpp": "//", "ops/a.cpp": text}))
        assert f"ops/a.cpp: {macro}(my_ops, …)" in str(error)
        assert error.hint == f"Write {macro}(TORCH_EXTENSION_NAME, …)."

"""Solutions that cannot be built: what is said, and that nothing stays behind."""

from __future__ import annotations

import sys

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder
from flashinfer_bench.errors import BuildError, CapabilityError

PYBIND = "#include <torch/csrc/utils/pybind.h>\n"


@pytest.fixture
def refused(build, own_cache):
    """Return a function that builds a solution that cannot be built and returns the error."""

    def run(solution, of=None) -> BuildError:
        modules = set(sys.modules)
        with pytest.raises(BuildError) as caught:
            build(solution, of)
        assert set(sys.modules) == modules
        assert f"solution {solution.name!r}" in str(caught.value)
        assert not [path for path in own_cache.rglob("*") if ".partial-" in path.name]
        return caught.value

    return run


class TestCompiling:
    def test_a_syntax_error_names_file_and_line(self, refused, make_solution, own_cache):
        error = refused(make_solution(files={"src/main.cpp": "int f()\n{\n  return 1 +;\n}\n"}))
        assert "compiling failed: sources/src/main.cpp:3:13: error: expected" in str(error)
        assert "return 1 +;" in error.log
        assert list(own_cache.rglob("main.cpp")) == []

    def test_an_error_in_a_header_names_the_header(self, refused, make_solution):
        files = {"main.cpp": '#include "a.h"\n', "a.h": "\nint f( { return 1; }\n"}
        assert "sources/a.h:2:" in str(refused(make_solution(files=files)))

    def test_a_header_that_is_not_there(self, refused, make_solution):
        error = refused(make_solution(files={"main.cpp": "#include <no/such/header.h>\n"}))
        assert "main.cpp:1:10: fatal error: no/such/header.h: No such file" in str(error)

    def test_a_header_outside_of_the_include_paths(self, refused, make_solution):
        files = {"main.cpp": '#include "config.h"\n', "include/config.h": ""}
        assert "config.h: No such file" in str(refused(make_solution(files=files)))

    def test_a_flag_that_does_not_exist(self, refused, make_solution):
        options = {"cflags": ["--no-such-flag"]}
        error = refused(make_solution("bare.cpp", compile_options=options))
        assert "--no-such-flag" in str(error)

    @pytest.mark.parametrize(
        "options", [{"include_paths": ["../other"]}, {"cflags": ["-DX=\n"]}, {"ldflags": ["\0"]}]
    )
    def test_options_that_are_not_allowed(self, refused, make_solution, options):
        error = refused(make_solution("bare.cpp", compile_options=options))
        assert f"compile_options.{next(iter(options))}" in str(error)

    def test_all_errors_are_in_the_log(self, refused, make_solution):
        files = {"a.cpp": "int a = one;\n", "b.cpp": "int b = two;\n"}
        log = refused(make_solution(files=files)).log
        assert "'one' was not declared" in log or "‘one’ was not declared" in log
        assert "-c sources/" in log

    @pytest.mark.parametrize("path", ["main.py", "kernel.h", "kernel.cuh", "binding", "README.md"])
    def test_an_entry_file_of_another_kind(self, refused, make_solution, path):
        error = refused(make_solution(files={path: "text", "kernel.cpp": ""}))
        assert "the entry file of a cpp solution must be compiled" in str(error)
        assert f"which {path!r} is not" in str(error)


class TestLinking:
    def test_a_symbol_that_nobody_defines(self, refused, make_solution, source, own_cache):
        text = "int missing_part(const char*, int);\n#define VALUE missing_part(0, 1)\n"
        error = refused(make_solution(files={"main.cpp": text + source("bare.cpp")}))
        assert "linking failed" in str(error)
        assert "undefined reference to `missing_part(char const*, int)'" in str(error)
        assert "in function `run" in error.log
        assert "Py" not in "\n".join(line for line in error.log.splitlines() if "undefined" in line)
        assert list(own_cache.rglob("*.so")) == []

    def test_one_that_torch_does_not_define(self, refused, make_solution):
        text = "namespace at { void no_such_thing(); }\nvoid f() { at::no_such_thing(); }\n"
        error = refused(make_solution(files={"main.cpp": text}))
        assert "undefined reference to `at::no_such_thing()'" in str(error)

    def test_a_library_that_is_not_there(self, refused, make_solution):
        solution = make_solution("bare.cpp", compile_options={"ldflags": ["-lno_such_library"]})
        assert "cannot find -lno_such_library" in str(refused(solution))

    def test_one_symbol_twice(self, refused, make_solution):
        files = {"a.cpp": "int f() { return 1; }\n", "b.cpp": "int f() { return 2; }\n"}
        assert "multiple definition of `f()'" in refused(make_solution(files=files)).log


class TestLoading:
    def test_a_symbol_that_is_missing_only_then(self, refused, make_solution, source):
        text = "int missing_part();\n#define VALUE missing_part()\n" + source("bare.cpp")
        options = {"ldflags": ["-Wl,--unresolved-symbols=ignore-all"]}
        solution = make_solution(files={"main.cpp": text}, compile_options=options)
        error = refused(solution)
        assert "loading the library failed: undefined symbol: missing_part()" in str(error)

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

    def test_a_module_of_pybind11_that_throws(self, refused, make_solution):
        text = (
            "#include <pybind11/pybind11.h>\n"
            'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { throw std::runtime_error("no luck"); }\n'
        )
        assert "no luck" in str(refused(make_solution(files={"main.cpp": text})))

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("-> Tensor", "-> ", "expected"),  # a schema that is none
            ("m.def(", 'm.def("run() -> ()"); m.def(', "run"),  # one operator twice
        ],
    )
    def test_operators_that_cannot_be_registered_do_not_end_the_process(
        self, refused, make_solution, source, old, new, reason
    ):
        text = source("returns.cpp").replace(old, new)
        for _ in range(2):
            error = refused(make_solution(files={"main.cpp": text}))
            assert "loading the library failed" in str(error)
            assert reason in error.log

    def test_a_library_without_module_and_operators(self, refused, make_solution):
        error = refused(make_solution(files={"main.cpp": "int run() { return 1; }\n"}))
        assert "has neither a Python module nor operators" in str(error)
        assert "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)" in error.hint

    @pytest.mark.parametrize("macro", ["TORCH_LIBRARY", "STABLE_TORCH_LIBRARY"])
    def test_operators_with_a_name_of_their_own(self, refused, make_solution, source, macro):
        text = source("returns.cpp").replace("LIBRARY(TORCH_EXTENSION_NAME", "LIBRARY(my_ops")
        text = text.replace("STABLE_TORCH_LIBRARY", macro)
        error = refused(make_solution(files={"main.cpp": text}))
        assert f"main.cpp: {macro}(my_ops, …)" in str(error)
        assert error.hint == f"Write {macro}(TORCH_EXTENSION_NAME, …)."


class TestSymbols:
    def test_in_a_module(self, refused, make_solution):
        error = refused(make_solution("bare.cpp", entry="bare.cpp::rum"))
        assert "bare.cpp defines no 'rum'" in str(error)
        assert error.hint == "Did you mean 'run'?"

    def test_among_operators(self, refused, make_solution):
        error = refused(make_solution("returns.cpp", entry="returns.cpp::runs"))
        assert "returns.cpp defines no 'runs'" in str(error)
        assert error.hint == "Did you mean 'run'?"

    def test_what_is_no_function(self, refused, make_solution, source):
        text = source("bare.cpp").replace(
            "return PyModule_Create(&module)",
            'PyObject* made = PyModule_Create(&module); PyModule_AddIntConstant(made, "run", 3); '
            "return made",
        )
        error = refused(make_solution(files={"main.cpp": text}))
        assert "'run' is a int, which cannot be called" in str(error)


class TestArguments:
    def test_a_wrong_number_names_both_right_ones(self, refused, make_solution, source):
        text = source("returns.cpp").replace("double scale)", "double scale, bool)")
        text = text.replace("float scale)", "float scale, bool a, bool b)")
        text = text.replace("bool)", "bool, bool)")
        error = refused(make_solution(files={"main.cpp": text}))
        assert "run: takes 5 positional arguments" in str(error)
        assert "Value-returning takes 3 arguments, destination-passing 4." in str(error)

    @pytest.mark.parametrize(("kind", "style"), [("returns.cpp", True), ("writes.cpp", False)])
    def test_a_stated_convention_that_does_not_fit(self, refused, make_solution, kind, style):
        error = refused(make_solution(kind, destination_passing_style=style))
        assert f"set destination_passing_style to {str(not style).lower()}" in error.hint

    def test_a_tuple_of_another_length(self, refused, make_solution, source, two_outputs):
        text = source("returns.cpp").replace("-> Tensor", "-> (Tensor, Tensor, Tensor)")
        text = text.replace("return out;", "return {out, out, out};")
        text = text.replace(
            "Tensor run(", "#include <tuple>\nstd::tuple<Tensor, Tensor, Tensor> run("
        )
        error = refused(make_solution(files={"main.cpp": text}), two_outputs)
        assert "'scaled_add_sum_h8' has 2 outputs: out, total" in str(error)


class TestMachine:
    def test_without_a_compiler(self, make_solution, definition, own_cache, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(CapabilityError, match="no-such-compiler"):
            TorchBuilder().build(definition, make_solution("bare.cpp"))

    def test_without_ninja(self, make_solution, definition, own_cache, monkeypatch):
        from flashinfer_bench.compile.toolkit import tools

        monkeypatch.setattr(tools, "_on_path", lambda name: iter(()) if name == "ninja" else None)
        monkeypatch.setattr(tools, "_packaged_ninja", lambda: iter(()))
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        monkeypatch.setenv("CXX", "g++")
        with pytest.raises(CapabilityError, match="ninja not found"):
            TorchBuilder().build(definition, make_solution("bare.cpp"))

    @pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
    @pytest.mark.parametrize("files", [{"a.cu": "//"}, {"a.cpp": "//", "b.cu": ""}])
    def test_cuda_with_a_torch_that_has_none(self, make_solution, definition, own_cache, files):
        with pytest.raises(CapabilityError, match=r"torch \S+ is built without CUDA"):
            TorchBuilder().build(definition, make_solution(files=files))

    def test_a_library_that_is_not_installed(
        self, make_solution, definition, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
        solution = make_solution("bare.cpp", dependencies=["cutlass", "torch"])
        with pytest.raises(CapabilityError, match="cutlass not found"):
            TorchBuilder().build(definition, solution)


def test_the_next_build_works(refused, build, make_solution):
    refused(make_solution(files={"bare.cpp": "broken"}))
    assert build(make_solution("bare.cpp"))() // 100 == 1

"""Solutions that cannot be built: what is said."""

from __future__ import annotations

import sys

import pytest

from fib_builder_tvmffi import cuda
from fib_builder_tvmffi.builder import TVMFFIBuilder
from flashinfer_bench.errors import BuildError, CapabilityError


@pytest.fixture
def refused(build, cache_folder):
    """Return a function that builds a solution that cannot be built and returns the error."""

    def run(solution, of=None) -> BuildError:
        with pytest.raises(BuildError) as caught:
            build(solution, of)
        error = caught.value
        assert error.message.startswith(f"solution {solution.name!r}: ")
        assert "\n" not in error.message
        assert str(cache_folder) not in str(error)
        return error

    return run


class TestEntryPoint:
    @pytest.mark.parametrize("path", ["kernel.h", "kernel.cuh", "kernel.py", "kernel", "cpp"])
    def test_a_file_that_is_not_compiled(self, refused, make_solution, path):
        error = refused(make_solution(files={path: "x"}, entry=f"{path}::run"))
        assert f"the entry file {path!r} is no source file" in error.message
        assert ".cpp" in error.hint

    @pytest.mark.parametrize("symbol", ["my-kernel", "2fast", "run()", "a.b", "a b", "run;"])
    def test_a_symbol_that_is_no_name(self, refused, make_solution, symbol):
        error = refused(make_solution(entry=f"kernel.cpp::{symbol}"))
        assert f"the entry symbol {symbol!r} cannot be the name" in error.message

    def test_a_symbol_that_is_not_exported_names_the_nearest(self, refused, make_solution):
        error = refused(make_solution("EXPORT(runn) { return 0; }\nEXPORT(other) { return 0; }"))
        assert "no source exports 'run'" in error.message
        assert error.hint == "Did you mean 'runn'?"

    def test_or_what_is_exported(self, refused, make_solution):
        error = refused(make_solution("EXPORT(add_one) { return 0; }\nEXPORT(zero) { return 0; }"))
        assert error.hint == "Exported: add_one, zero."

    def test_or_how_to_export(self, refused, make_solution):
        error = refused(make_solution("void run() {}"))
        assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, <function>);" in error.hint

    def test_it_is_found_when_compiling(self, make_solution, definition, empty_cache):
        with pytest.raises(BuildError, match="no source exports"):
            TVMFFIBuilder().compile(definition, make_solution("EXPORT(other) { return 0; }"))


class TestCompiling:
    def test_a_syntax_error_names_file_and_line(self, refused, make_solution):
        error = refused(make_solution("\nEXPORT(run) { return nope; }"))
        assert "compiling failed: kernel.cpp:3:" in error.message
        assert "'nope'" in error.message.replace("‘", "'").replace("’", "'")
        assert "EXPORT(run) { return nope; }" in error.log

    def test_in_a_header_it_names_the_header(self, refused, make_solution):
        files = {"kernel.cpp": '#include "d/a.h"\n', "d/a.h": "\n\nint x = ;\n"}
        assert "compiling failed: d/a.h:3:" in refused(make_solution(files=files)).message

    def test_a_missing_header(self, refused, make_solution):
        error = refused(make_solution("#include <no/such_header.h>\n"))
        assert "no/such_header.h: No such file or directory" in error.message
        assert "include_paths" in error.hint

    def test_an_unknown_flag(self, refused, make_solution):
        error = refused(make_solution(options={"cflags": ["--no-such-flag"]}))
        assert "--no-such-flag" in error.message

    def test_an_open_quote_in_a_flag(self, refused, make_solution):
        error = refused(make_solution(options={"cflags": ["'-DX"]}))
        assert "no closing quotation" in error.message

    @pytest.mark.parametrize("flags", [["-o", "elsewhere.so"], ["--version"]])
    def test_flags_that_leave_no_library(self, refused, make_solution, flags):
        error = refused(make_solution(options={"ldflags": flags}))
        assert "left no library" in error.message
        assert "ldflags" in error.hint

    def test_a_control_character_in_a_flag(self, refused, make_solution):
        error = refused(make_solution(options={"ldflags": ["-lm\n-lz"]}))
        assert "control character" in error.message

    def test_the_next_build_works(self, refused, make_solution, run, expected):
        refused(make_solution("broken"))
        assert run(make_solution()).equal(expected)


class TestLinking:
    @pytest.mark.parametrize("language", ["cpp", "cuda"])
    def test_a_symbol_that_is_nowhere(self, refused, make_solution, language, request):
        if language == "cuda":
            request.getfixturevalue("nvcc")
        source = 'extern "C" int nowhere();\nEXPORT(run) { return nowhere(); }'
        error = refused(make_solution(source, language=language))
        assert "linking failed: " in error.message
        assert "undefined reference to `nowhere'" in error.message
        assert "compile_options.ldflags" in error.hint

    def test_two_of_one_name(self, refused, make_solution):
        files = {
            "kernel.cpp": '#include "plain.h"\nint twice = 1;\nEXPORT(run) { return twice; }\n',
            "other.cpp": "int twice = 2;\n",
        }
        error = refused(make_solution(files=files))
        assert "linking failed: " in error.message
        assert "multiple definition of `twice'" in error.log


class TestSignature:
    RETURNS = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Sum)"
    WRITES = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)"

    @pytest.mark.parametrize("style", [True, False])
    def test_a_stated_convention_that_does_not_fit_names_the_other(
        self, refused, make_solution, style
    ):
        source = self.RETURNS if style else self.WRITES
        error = refused(make_solution(source, base="typed", destination_passing_style=style))
        assert "run(DLTensor*, DLTensor*, float" in error.message
        wanted = "gets 4: x, y, scale, out" if style else "gets 3: x, y, scale"
        assert wanted in error.message
        assert f"set destination_passing_style to {str(not style).lower()}" in error.hint

    def test_a_number_of_arguments_that_fits_neither(self, refused, make_solution):
        source = "static void One(ffi::TensorView) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, One)"
        error = refused(make_solution(source, base="typed"))
        assert "run(DLTensor*) -> None takes 1 arguments" in error.message
        assert "Value-returning takes 3 arguments, destination-passing 4." in error.hint


class TestMissingTools:
    @pytest.fixture
    def empty_path(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))

    def test_no_compiler(self, build, make_solution, empty_path):
        with pytest.raises(CapabilityError, match=r"c\+\+ not found") as caught:
            build(make_solution())
        assert "CXX" in caught.value.hint

    def test_a_compiler_that_is_none(self, build, make_solution, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(CapabilityError, match="no-such-compiler"):
            build(make_solution())

    def test_no_cuda(self, build, make_solution, monkeypatch):
        def missing():
            raise CapabilityError("nvcc not found: PATH", hint="Install the CUDA toolkit")

        monkeypatch.setattr(cuda, "find_nvcc", missing)
        with pytest.raises(CapabilityError, match="nvcc not found"):
            build(make_solution(language="cuda"))

    def test_no_gpu_and_nothing_said(self, build, make_solution, nvcc, monkeypatch):
        def missing():
            raise CapabilityError("no GPU", hint="Set FIB_CUDA_ARCH_LIST")

        monkeypatch.setattr(cuda, "cuda_architectures", missing)
        files = {"kernel.cu": "int x;"}
        with pytest.raises(CapabilityError, match="no GPU"):
            build(make_solution(files=files, entry="kernel.cu::run", language="cuda"))

    def test_a_broken_installation(self, make_solution, definition, monkeypatch):
        builder, solution = TVMFFIBuilder(), make_solution()
        artefact = builder.compile(definition, solution)
        monkeypatch.setitem(sys.modules, "tvm_ffi", None)
        with pytest.raises(CapabilityError, match="is installed, but cannot be imported"):
            builder.load(definition, solution, artefact)

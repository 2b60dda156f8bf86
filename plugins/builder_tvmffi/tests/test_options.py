"""What a solution asks of its compilers: flags, folders, libraries."""

from __future__ import annotations

import subprocess

import pytest
import torch

from flashinfer_bench.errors import BuildError, CapabilityError

MACRO = "EXPORT(run) { return add(args, FACTOR); }"


class TestFlags:
    def test_for_the_compiler(self, run, make_solution, expected):
        solution = make_solution(MACRO, options={"cflags": ["-DFACTOR=2.0"]})
        assert torch.equal(run(solution), expected * 2)

    def test_several_in_one_as_a_shell_reads_them(self, run, make_solution, expected):
        flags = ["-DFACTOR=2.0 -DTEXT='\"a b\"'", '-DOTHER=\\"$HOME\\"']
        source = (
            f"{MACRO}\n"
            'static_assert(sizeof(TEXT) == 4, "both words");\n'
            "static_assert(OTHER[0] == '$', \"no variables\");\n"
        )
        assert torch.equal(run(make_solution(source, options={"cflags": flags})), expected * 2)

    @pytest.mark.parametrize(("flags", "standard"), [((), 2017), (("-std=c++20",), 2020)])
    def test_the_standard(self, run, make_solution, expected, flags, standard):
        years = {2017: "201703L", 2020: "202002L"}
        source = (
            f"EXPORT(run) {{ return add(args, 1.0); }}\n"
            f'static_assert(__cplusplus == {years[standard]}, "standard");\n'
        )
        assert torch.equal(run(make_solution(source, options={"cflags": list(flags)})), expected)

    def test_warnings_as_errors_do_not_meet_the_headers_of_tvm_ffi(self, run, make_solution):
        flags = ["-Wall", "-Wextra", "-Wpedantic", "-Wold-style-cast", "-Wno-unused", "-Werror"]
        source = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n"
        run(make_solution(source, base="typed", options={"cflags": flags}))

    def test_metadata_can_be_switched_off(self, build, make_solution):
        flags = ["-UTVM_FFI_DLL_EXPORT_INCLUDE_METADATA"]
        source = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n"
        runnable = build(make_solution(source, base="typed", options={"cflags": flags}))
        assert runnable.metadata.misc["signature"] is None

    @pytest.mark.parametrize("word", ["$in", "$out"])
    def test_one_that_begins_like_a_variable_of_ninja(
        self, build, make_solution, tmp_path, empty_cache, word
    ):
        options = {"cflags": [f"'{word}; touch {tmp_path}/made'"]}
        with pytest.raises(BuildError, match=r"No such file"):
            build(make_solution(options=options))
        assert not (tmp_path / "made").exists()

    def test_they_are_part_of_what_is_built(self, build, make_solution):
        one, two = (
            build(make_solution(MACRO, options={"cflags": [f"-DFACTOR={n}"]})) for n in (2.0, 3.0)
        )
        assert one.metadata.misc["library"] != two.metadata.misc["library"]


class TestIncludePaths:
    SOURCE = "#include <factor.h>\nEXPORT(run) { return add(args, N); }\n"

    def test_of_the_solution(self, run, make_solution, expected):
        files = {
            "kernel.cpp": '#include "plain.h"\n' + self.SOURCE,
            "third party/factor.h": "#define N 2.0\n",
        }
        solution = make_solution(files=files, options={"include_paths": ["third party"]})
        assert torch.equal(run(solution), expected * 2)

    def test_absolute(self, run, make_solution, expected, tmp_path):
        folder = tmp_path / "with blank"
        folder.mkdir()
        (folder / "factor.h").write_text("#define N 2.0\n")
        solution = make_solution(self.SOURCE, options={"include_paths": [str(folder)]})
        assert torch.equal(run(solution), expected * 2)

    def test_that_leave_the_solution(self, build, make_solution):
        with pytest.raises(BuildError, match="leaves the solution's folder"):
            build(make_solution(options={"include_paths": ["a/../../b"]}))


class TestLibraries:
    @pytest.fixture
    def library(self, tmp_path):
        """Make shared libraries with one function, and return their folder."""
        (tmp_path / "times.c").write_text("double factor(void) { return 2.0; }\n")
        # Two: what a process has loaded once is found again by its name.
        for name in ("fibtimes", "fiblost"):
            command = ["cc", "-shared", "-fPIC", "times.c", "-o", f"lib{name}.so"]
            subprocess.run(command, cwd=tmp_path, check=True)
        return tmp_path

    SOURCE = 'extern "C" double factor();\nEXPORT(run) { return add(args, factor()); }\n'

    def test_linked_and_found_when_loaded(self, run, make_solution, expected, library):
        flags = [f"-L{library}", "-lfibtimes", f"-Wl,-rpath,{library}"]
        assert torch.equal(
            run(make_solution(self.SOURCE, options={"ldflags": flags})), expected * 2
        )

    def test_linked_but_not_found_when_loaded(self, build, make_solution, library, empty_cache):
        solution = make_solution(self.SOURCE, options={"ldflags": [f"-L{library}", "-lfiblost"]})
        with pytest.raises(BuildError, match=r"cannot be loaded: libfiblost\.so") as caught:
            build(solution)
        assert "-Wl,-rpath" in caught.value.hint

    def test_one_that_is_nowhere(self, build, make_solution):
        with pytest.raises(BuildError, match="cannot find -lno_such_library"):
            build(make_solution(options={"ldflags": ["-lno_such_library"]}))


class TestDependencies:
    """With a cuBLAS that is none."""

    @pytest.fixture
    def cublas(self, tmp_path, monkeypatch):
        root = tmp_path / "cublas"
        (root / "include").mkdir(parents=True)
        (root / "lib").mkdir()
        (root / "include" / "cublas_v2.h").write_text('extern "C" double cublasFactor();\n')
        (root / "times.c").write_text("double cublasFactor(void) { return 2.0; }\n")
        for name in ("cublas", "cublasLt"):
            command = ["cc", "-shared", "-fPIC", "times.c", "-o", f"lib/lib{name}.so"]
            subprocess.run(command, cwd=root, check=True)
        monkeypatch.setenv("CUBLAS_PATH", str(root))
        return root

    SOURCE = "#include <cublas_v2.h>\nEXPORT(run) { return add(args, cublasFactor()); }\n"

    def test_declared(self, run, make_solution, expected, cublas):
        solution = make_solution(self.SOURCE, dependencies=["cublas", "torch >= 2"])
        assert torch.equal(run(solution), expected * 2)

    def test_included_without_being_declared(self, run, make_solution, expected, cublas):
        assert torch.equal(run(make_solution(self.SOURCE)), expected * 2)

    def test_the_version_is_part_of_what_is_built(
        self, make_solution, definition, cublas, empty_cache
    ):
        from fib_builder_tvmffi.builder import TVMFFIBuilder

        solution = make_solution(self.SOURCE)
        keys = []
        for major in (12, 13):
            text = f"#define CUBLAS_VER_MAJOR {major}\n"
            (cublas / "include" / "cublas_api.h").write_text(text)
            keys.append(TVMFFIBuilder().plan(definition, solution).key["libraries"])
        assert keys[0] != keys[1]

    def test_declared_and_not_here(self, build, make_solution, monkeypatch, tmp_path):
        monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
        with pytest.raises(CapabilityError, match="cutlass not found"):
            build(make_solution(dependencies=["cutlass"]))

    def test_included_and_not_here_is_for_the_compiler_to_tell(
        self, build, make_solution, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
        with pytest.raises(BuildError, match=r"cutlass/gemm\.h: No such file"):
            build(make_solution("#include <cutlass/gemm.h>\nEXPORT(run) { return 0; }"))

    def test_a_header_of_the_solution_that_is_called_the_same(self, run, make_solution, expected):
        files = {
            "kernel.cpp": '#include "plain.h"\n#include "cudnn.h"\n'
            "EXPORT(run) { return add(args, N); }\n",
            "cudnn.h": "#define N 2.0\n",
        }
        assert torch.equal(run(make_solution(files=files)), expected * 2)

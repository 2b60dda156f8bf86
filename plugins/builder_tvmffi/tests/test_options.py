"""What a solution asks of its compilers: flags, folders, libraries."""

import subprocess

import pytest
import torch

from flashinfer_bench.errors import BuildError


class TestFlags:
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

    def test_linked_but_not_found_when_loaded(self, build, make_solution, library, own_cache):
        solution = make_solution(self.SOURCE, options={"ldflags": [f"-L{library}", "-lfiblost"]})
        with pytest.raises(BuildError, match=r"cannot be loaded: libfiblost\.so") as caught:
            build(solution)
        assert "-Wl,-rpath" in caught.value.hint


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

    def test_included_without_being_declared(self, run, make_solution, expected, cublas):
        assert torch.equal(run(make_solution(self.SOURCE)), expected * 2)

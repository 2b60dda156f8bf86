"""What a solution asks of its compilers: flags, folders, libraries."""

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


CALLS = 'extern "C" double factor();\nEXPORT(run) { return add(args, factor()); }\n'


def test_linked_but_not_found_when_loaded(build, make_solution, make_library, tmp_path, own_cache):
    make_library(tmp_path / "libfiblost.so", "double factor(void) { return 2.0; }\n")
    solution = make_solution(CALLS, options={"ldflags": [f"-L{tmp_path}", "-lfiblost"]})
    with pytest.raises(BuildError, match=r"cannot be loaded: libfiblost\.so") as caught:
        build(solution)
    assert "-Wl,-rpath" in caught.value.hint


def test_a_library_that_is_included_without_being_declared(
    run, make_solution, make_library, expected, tmp_path, monkeypatch
):
    """With a cuBLAS that is none."""
    (tmp_path / "include").mkdir()
    header = 'extern "C" double cublasFactor();\n'
    (tmp_path / "include" / "cublas_v2.h").write_text(header)
    for name in ("cublas", "cublasLt"):
        library = tmp_path / "lib" / f"lib{name}.so"
        make_library(library, "double cublasFactor(void) { return 2.0; }\n")
    monkeypatch.setenv("CUBLAS_PATH", str(tmp_path))
    source = "#include <cublas_v2.h>\nEXPORT(run) { return add(args, cublasFactor()); }\n"
    assert torch.equal(run(make_solution(source)), expected * 2)

"""Solutions of several files, and the headers that they read."""

import pytest
import torch

from fib_builder_tvmffi.builder import TVMFFIBuilder

CALLS = '#include "plain.h"\nint work(const TVMFFIAny*);\nEXPORT(run) { return work(args); }\n'
WORKS = '#include "{header}"\nint work(const TVMFFIAny* args) {{ return add(args, {factor}); }}\n'


class TestSeveralFiles:
    @pytest.mark.parametrize("name", ["a|b.cpp", "-x.cpp", "@x.cpp", "$in.cpp", "kärnel 核.cpp"])
    def test_names_that_mean_something_to_a_compiler(self, run, make_solution, expected, name):
        files = {name: CALLS, "b.cpp": WORKS.format(header="plain.h", factor=2.0)}
        assert torch.equal(run(make_solution(files=files, entry=f"{name}::run")), expected * 2)

    def test_c(self, run, make_solution, expected):
        c = (
            "#include <tvm/ffi/c_api.h>\n"
            "int work(const TVMFFIAny* args, int (*add)(const TVMFFIAny*, double)) {\n"
            "  int class = 2;  /* no C++ */\n"
            "  return add(args, class);\n}\n"
        )
        cpp = (
            '#include "plain.h"\n'
            'extern "C" int work(const TVMFFIAny*, int (*)(const TVMFFIAny*, double));\n'
            "EXPORT(run) { return work(args, add); }\n"
        )
        files = {"work.c": c, "main.cpp": cpp}
        options = {"cflags": ["-std=c++20"]}  # which must not go to the C compiler
        solution = make_solution(files=files, entry="main.cpp::run", options=options)
        assert torch.equal(run(solution), expected * 2)


def test_headers_of_tvm_ffi_are_known_by_its_version(make_solution, definition):
    builder = TVMFFIBuilder()
    solution = make_solution("TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n", base="typed")
    (root,) = builder.plan(definition, solution).versioned_roots
    assert (root / "tvm" / "ffi" / "function.h").is_file()
    read = builder.compile(definition, solution).info.headers
    assert [path for path in read if path.startswith(str(root))] == []

"""Solutions of several files, and what is rebuilt when one of them changes."""

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


class TestChanges:
    KERNEL = '#include "plain.h"\n#include "n.h"\nEXPORT(run) { return add(args, N); }\n'

    def test_only_a_header_outside_of_the_solution(
        self, build, make_solution, inputs, expected, tmp_path
    ):
        # In one process: the system would hand out the old library for the old path.
        files = {"kernel.cpp": self.KERNEL.replace('"n.h"', "<n.h>")}
        solution = make_solution(files=files, options={"include_paths": [str(tmp_path)]})
        for factor in (2, 4, 2):
            (tmp_path / "n.h").write_text(f"#define N {factor}.0\n")
            runnable = build(solution)
            out = torch.full((3, 8), torch.nan)
            runnable(*inputs, out)
            assert torch.equal(out, expected * factor)
            assert runnable.metadata.misc["fresh"]
        assert not build(solution).metadata.misc["fresh"]

    def test_those_of_tvm_ffi_are_known_by_its_version(self, make_solution, definition):
        builder = TVMFFIBuilder()
        solution = make_solution("TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n", base="typed")
        (root,) = builder.plan(definition, solution).versioned_roots
        assert (root / "tvm" / "ffi" / "function.h").is_file()
        read = builder.compile(definition, solution).info.headers
        assert [path for path in read if path.startswith(str(root))] == []

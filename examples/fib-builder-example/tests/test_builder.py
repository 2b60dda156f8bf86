"""Solutions that can be built, and solutions that cannot."""

from __future__ import annotations

import pytest
import torch
from flashinfer_bench.errors import BuildError

SIGNATURE = "void run(const float *x, const float *y, float scale, float *out, int64_t tokens)"
HEAD = "#include <stdint.h>\n"


@pytest.fixture
def refused(build, make_solution, cache_folder):
    """Return a function that expects a build to fail and returns the error."""

    def run(*args, **kwargs) -> BuildError:
        with pytest.raises(BuildError) as caught:
            build(make_solution(*args, **kwargs))
        assert "'my_solution'" in caught.value.message
        assert list(cache_folder.rglob("*.so")) == []
        return caught.value

    return run


class TestRight:
    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution()).metadata
        assert metadata.build_type == "example"
        assert metadata.definition is definition
        assert metadata.destination_passing_style
        assert metadata.misc["prototype"] == f"{SIGNATURE};"

    def test_several_files(self, build, make_solution, inputs):
        files = {
            "main.c": f'{HEAD}#include "include/add.h"\n'
            f"{SIGNATURE} {{ add(x, y, out, tokens); times(out, scale, tokens); }}\n",
            "include/add.h": "void add(const float *, const float *, float *, int64_t);\n"
            "void times(float *, float, int64_t);\n",
            "lib/add.c": f"{HEAD}void add(const float *x, const float *y, float *z, int64_t n)\n"
            "{ for (int64_t i = 0; i < n * AXIS_hidden; i++) z[i] = x[i] + y[i]; }\n",
            "lib/times.c": f"{HEAD}void times(float *z, float s, int64_t n)\n"
            "{ for (int64_t i = 0; i < n * AXIS_hidden; i++) z[i] *= s; }\n",
            "notes.txt": "no source",
        }
        x, y, scale = inputs
        run = build(make_solution(files=files))
        assert torch.equal(run.call_value_returning(*inputs), (x + y) * scale)

    def test_two_solutions_with_the_same_names_in_them(self, build, make_solution, inputs):
        plus = build(make_solution())
        source = f"{HEAD}{SIGNATURE} {{ for (int64_t i = 0; i < tokens * 8; i++) out[i] = 7; }}\n"
        seven = build(make_solution(source))
        assert torch.equal(seven.call_value_returning(*inputs), torch.full((3, 8), 7.0))
        assert not torch.equal(plus.call_value_returning(*inputs), torch.full((3, 8), 7.0))

    def test_compile_options(self, build, make_solution, inputs):
        source = (
            f'{HEAD}#include "seven.h"\n#include <math.h>\n{SIGNATURE}\n'
            "{ for (int64_t i = 0; i < tokens * 8; i++) out[i] = SEVEN * sqrtf(ONE); }\n"
        )
        solution = make_solution(
            files={"main.c": source, "more/seven.h": "#define SEVEN 7\n"},
            compile_options={
                "cflags": ["-O3", "-DONE=1"],
                "include_paths": ["more"],
                "ldflags": ["-Wl,-O1"],
            },
        )
        assert build(solution).call_value_returning(*inputs).eq(7).all()

    def test_a_function_called_like_one_of_the_system_s(self, build, make_solution, inputs):
        # Several functions, because which of them the process has already loaded depends on Python.
        helpers = {"times": 1, "read": 2, "index": 4}
        source = HEAD + "".join(f"int {name}(void);\n" for name in helpers)
        calls = " + ".join(f"{name}()" for name in helpers)
        files = {"main.c": f"{source}{SIGNATURE} {{ out[0] = {calls}; }}\n"} | {
            f"{name}.c": f"int {name}(void) {{ return {value}; }}\n"
            for name, value in helpers.items()
        }
        assert build(make_solution(files=files)).call_value_returning(*inputs)[0, 0] == 7


class TestSignature:
    @pytest.mark.parametrize(
        "signature",
        [
            "void run(const float *x, const float *y, float scale, float *out)",
            "void run(const float *x, const float *y, float scale, float *out, int tokens)",
            "void run(const float *x, const float *y, double scale, float *out, int64_t tokens)",
            "void run(const float *x, const float *y, float *scale, float *out, int64_t tokens)",
            "void run(const double *x, const float *y, float scale, float *out, int64_t tokens)",
            "void run(float *x, const float *y, float scale, float *out, int64_t tokens)",
            "void run(const float *x, const float *y, float scale, float *out, int64_t n, int m)",
            "int run(const float *x, const float *y, float scale, float *out, int64_t tokens)",
            "void run()",
            "void run(void)",
        ],
    )
    def test_another_one_does_not_compile(self, refused, signature):
        error = refused(f"{HEAD}{signature} {{ }}\n")
        assert "error: " in error.message
        assert error.hint == f"the entry point is called as: {SIGNATURE};"

    @pytest.mark.parametrize(
        "signature",
        [
            SIGNATURE.replace("*", "*restrict "),
            SIGNATURE.replace("scale", "s").replace("tokens", "n"),
            SIGNATURE.replace("const float *x", "const float x[]"),
            SIGNATURE.replace("void run", "extern void run"),
            f"{SIGNATURE};\n{SIGNATURE}",
        ],
    )
    def test_another_spelling_does(self, build, make_solution, signature):
        build(make_solution(f"{HEAD}{signature} {{ }}\n"))

    def test_feature_macros_of_a_source_take_effect(self, build, make_solution):
        source = (
            "#define _GNU_SOURCE\n#include <math.h>\n#include <stdint.h>\n"
            f"{SIGNATURE} {{ double s; sincos(scale, &s, &s); out[0] = s; }}\n"
        )
        build(make_solution(source))


class TestWrong:
    def test_a_static_function(self, refused):
        assert "static declaration of" in refused(f"{HEAD}static {SIGNATURE} {{ }}\n").message

    def test_a_function_that_is_declared_and_nowhere_defined(self, refused):
        error = refused(f"{HEAD}void other(void);\n{SIGNATURE} {{ other(); }}\n")
        assert "linking failed" in error.message
        assert "other" in error.log

    def test_an_entry_file_of_another_kind(self, refused):
        error = refused(files={"main.cpp": "void run() {}"}, entry="main.cpp::run")
        assert "must be a .c file, not 'main.cpp'" in error.message

"""Solutions that can be built."""

import json
import sys

import pytest
import torch

from fib_builder_cuda_torch.builder import TorchBuilder
from fib_tests.scaled_add import run_on

KINDS = ["module.cpp", "library.cpp", "returns.cpp", "writes.cpp"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes(build, make_solution, inputs, expected, kind):
    runnable = build(make_solution(kind))
    assert runnable.metadata.destination_passing_style is (kind == "writes.cpp")
    assert torch.equal(runnable.call_value_returning(*inputs), expected)


def test_without_a_binding_the_sources_tell(make_solution):
    builder = TorchBuilder()
    assert builder.can_build(make_solution("module.cpp", binding=None))
    assert builder.can_build(make_solution("writes.cpp", binding=None))
    assert not builder.can_build(make_solution(files={"a.cpp": "int run();"}, binding=None))


def test_equal_names_in_folders_headers_and_a_nested_entry(build, make_solution):
    files = {
        "src/ops/kernel.cpp": '#include "kernel.h"\nint first() { return ONE; }\n',
        "src/kernel.cpp": '#include "ops/kernel.h"\n'
        '#include "config.h"\n'
        '#include "shared/limits.h"\n'
        "int first();\n#define VALUE (first() + CONFIG + LIMIT)\n#include BARE\n",
        "src/ops/kernel.h": "#pragma once\n#define ONE 1\n",
        "include/config.h": "#define CONFIG 2\n",
        "shared/limits.h": "#define LIMIT 4\n",
        "src/notes.md": "Not for a compiler.",
    }
    files["src/bare.inc"] = make_solution("bare.cpp").get_entry_source().content
    options = {"include_paths": ["include"], "cflags": ["'-DBARE=\"bare.inc\"'"]}
    solution = make_solution(files=files, entry="src/kernel.cpp::run", compile_options=options)
    assert build(solution)() // 100 == 7


COMPILE_TWICE = """
from fib_builder_cuda_torch.builder import TorchBuilder as Builder
artefact = Builder().compile(definition, solution)
again = Builder().compile(definition, solution)
print(artefact.fresh, again.fresh, 'torch' in sys.modules)
"""


def test_compiling_imports_no_torch_and_runs_nothing(definition, make_solution, source, own_cache):
    text = source("bare.cpp").replace("return PyModule", "std::abort();\nreturn PyModule")
    solution = make_solution(files={"main.cpp": "#include <cstdlib>\n" + text})
    assert run_on(COMPILE_TWICE, definition, solution).stdout == "True False False\n"


class TestOneProcess:
    def test_solutions_do_not_share_what_is_inline(self, build, make_solution):
        # GCC makes such variables one for the whole process, unless it is told not to.
        first, second = (
            build(make_solution("bare.cpp", compile_options={"cflags": [f"-DVALUE={n}"]}))
            for n in (11, 12)
        )
        start = first() - 1100, second() - 1200
        assert (first() - 1100, second() - 1200) == (start[0] + 1, start[1] + 1)
        assert first() - 1100 == start[0] + 2

    def test_the_same_solution_from_another_cache(
        self, build, make_solution, inputs, expected, own_cache
    ):
        # Operators registered twice would end the process: each build has a name of its own.
        runnable = build(make_solution("returns.cpp"))
        assert str(own_cache) in runnable.metadata.misc["library"]
        assert torch.equal(runnable(*inputs), expected)

    def test_a_module_with_a_name_of_its_own(self, build, make_solution):
        before = dict(sys.modules)
        options = {"cflags": ["-DMODULE_NAME=json"]}
        assert build(make_solution("bare.cpp", compile_options=options))() // 100 == 1
        assert sys.modules["json"] is json
        assert set(sys.modules) == set(before)

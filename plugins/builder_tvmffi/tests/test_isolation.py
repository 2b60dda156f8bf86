"""Solutions in one process do not meet; nor do they meet what others have loaded."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

# By default these are variables of the whole process, however its libraries were loaded.
SHARED = """
inline double& state() { static double value = N; return value; }
template <int> struct Holder { static inline double value = N; };
EXPORT(run) { return add(args, state() * Holder<1>::value); }
"""


def test_variables_of_one_name_are_not_shared(run, make_solution, expected):
    for factor in (2, 4, 2):
        options = {"cflags": [f"-DN={factor}.0"]}
        solution = make_solution(SHARED, options=options)
        assert torch.equal(run(solution), expected * factor * factor)


CHILD = """
import os, sys, json
from fib_builder_tvmffi.builder import TVMFFIBuilder
from flashinfer_bench.data import Definition, Solution
d, s = Definition.model_validate_json(sys.argv[1]), Solution.model_validate_json(sys.argv[2])
artefact = TVMFFIBuilder().compile(d, s)
assert not {"torch", "tvm_ffi"} & set(sys.modules)
runnable = TVMFFIBuilder().build(d, s)
import torch
x, out = torch.ones(3, 8), torch.empty(3, 8)
runnable(x, x, 2.0, out)
print(json.dumps([artefact.fresh, runnable.metadata.misc["fresh"], out.sum().item()]))
"""


@pytest.fixture
def in_child(definition):
    """Return a function that builds a solution in another process, and what that printed."""

    def start(solution, **variables):
        arguments = [definition.model_dump_json(), solution.model_dump_json(exclude_unset=True)]
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


class TestProcesses:
    def test_compiling_imports_neither_torch_nor_tvm_ffi(self, in_child, make_solution, own_cache):
        output, errors = in_child(make_solution()).communicate()
        assert (output, errors) == ("[true, false, 96.0]\n", "")


def test_its_own_functions_come_before_those_of_loaded_libraries(
    run, make_solution, expected, tmp_path
):
    (tmp_path / "other.c").write_text("double fib_test_factor(void) { return 9.0; }\n")
    command = ["cc", "-shared", "-fPIC", "other.c", "-o", "libfibother.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    ctypes.CDLL(str(tmp_path / "libfibother.so"), mode=ctypes.RTLD_GLOBAL)
    source = (
        'extern "C" double fib_test_factor() { return 2.0; }\n'
        "EXPORT(run) { return add(args, fib_test_factor()); }\n"
    )
    assert torch.equal(run(make_solution(source)), expected * 2)

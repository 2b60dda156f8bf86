"""Solutions in one process do not meet; nor do they meet what others have loaded."""

import ctypes

import torch

from fib_tests.scaled_add import run_on

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
from fib_builder_tvmffi.builder import TVMFFIBuilder
artefact = TVMFFIBuilder().compile(definition, solution)
assert not {"torch", "tvm_ffi"} & set(sys.modules)
runnable = TVMFFIBuilder().build(definition, solution)
import torch
x, out = torch.ones(3, 8), torch.empty(3, 8)
runnable(x, x, 2.0, out)
print(artefact.fresh, runnable.metadata.misc["fresh"], out.sum().item())
"""


def test_compiling_imports_neither_torch_nor_tvm_ffi(definition, make_solution, own_cache):
    done = run_on(CHILD, definition, make_solution())
    assert (done.stdout, done.stderr) == ("True False 96.0\n", "")


def test_its_own_functions_come_before_those_of_loaded_libraries(
    run, make_solution, make_library, expected, tmp_path
):
    make_library(tmp_path / "libfibother.so", "double fib_test_factor(void) { return 9.0; }\n")
    ctypes.CDLL(str(tmp_path / "libfibother.so"), mode=ctypes.RTLD_GLOBAL)
    source = (
        'extern "C" double fib_test_factor() { return 2.0; }\n'
        "EXPORT(run) { return add(args, fib_test_factor()); }\n"
    )
    assert torch.equal(run(make_solution(source)), expected * 2)

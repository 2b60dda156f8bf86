"""Builds by several processes, killed builds, and what a process needs to load a finished one."""

import subprocess
import sys

import pytest

SCRIPT = """\
import sys
from fib_builder_cuda_torch.builder import TorchBuilder
from flashinfer_bench.data import Definition, Solution
definition = Definition.model_validate_json(sys.argv[1])
solution = Solution.model_validate_json(sys.argv[2])
"""


@pytest.fixture
def start(definition):
    """Return a function that starts a process, in a group of its own, with a solution."""

    def run(solution, code):
        arguments = [d.model_dump_json(exclude_unset=True) for d in (definition, solution)]
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT + code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def test_compiling_imports_no_torch_and_runs_nothing(start, make_solution, source, own_cache):
    text = source("bare.cpp").replace("return PyModule", "std::abort();\nreturn PyModule")
    solution = make_solution(files={"main.cpp": "#include <cstdlib>\n" + text})
    code = (
        "artefact = TorchBuilder().compile(definition, solution)\n"
        "again = TorchBuilder().compile(definition, solution)\n"
        "print(artefact.fresh, again.fresh, 'torch' in sys.modules)\n"
    )
    assert start(solution, code).communicate()[0] == "True False False\n"

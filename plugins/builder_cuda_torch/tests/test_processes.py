"""Builds by several processes, killed builds, and what a process needs to load a finished one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fib_builder_cuda_torch.builder import TorchBuilder

SCRIPT = """\
import sys
from fib_builder_cuda_torch.builder import TorchBuilder
from flashinfer_bench.data import Definition, Solution
definition = Definition.model_validate_json(sys.argv[1])
solution = Solution.model_validate_json(sys.argv[2])
"""
BUILD = "print(TorchBuilder().build(definition, solution)())\n"


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


def test_one_process_compiles_and_the_others_wait(start, make_solution, own_cache):
    solution = make_solution("bare.cpp", compile_options={"cflags": ["-DVALUE=5"]})
    code = "print(TorchBuilder().compile(definition, solution).fresh)\n"
    outputs = [process.communicate()[0] for process in [start(solution, code) for _ in range(3)]]
    assert sorted(outputs) == ["False\n", "False\n", "True\n"]


def test_a_finished_build_needs_no_compiler(start, make_solution, build, monkeypatch):
    solution = make_solution("bare.cpp")
    build(solution)
    watch = (
        "import subprocess\n"
        "commands = []\n"
        "real = subprocess.Popen\n"
        "class Popen(real):\n"
        "    def __init__(self, command, *a, **k):\n"
        "        commands.append(command)\n"
        "        super().__init__(command, *a, **k)\n"
        "subprocess.Popen = Popen\n"
        "runnable = TorchBuilder().build(definition, solution)\n"
        "print(runnable.metadata.misc['fresh'], runnable())\n"
        "print(all(command[-1] == '--version' for command in commands))\n"
        "print('torch.utils.cpp_extension' in sys.modules)\n"
    )
    assert start(solution, watch).communicate()[0] == "False 101\nTrue\nFalse\n"


def test_a_library_of_operators_is_tried_once(start, make_solution, build):
    solution = make_solution("returns.cpp")
    build(solution)
    code = (
        "from fib_builder_cuda_torch import loading\n"
        "loading.run_tool = None\n"  # what starts the trial: now it would fail
        "print(TorchBuilder().build(definition, solution).metadata.misc['found_as'][:8])\n"
    )
    assert start(solution, code).communicate()[0] == "operator\n"


def test_a_killed_build_leaves_nothing_that_blocks_or_misleads(
    start, make_solution, source, build, own_cache, tmp_path
):
    # The compiler waits until somebody opens the other end of this header.
    pipe = tmp_path / "header.h"
    os.mkfifo(pipe)
    text = f'#include "{pipe}"\n' + source("bare.cpp")
    solution = make_solution(files={"main.cpp": text})
    process = start(solution, BUILD)
    deadline = time.monotonic() + 60
    while not list(own_cache.rglob("build.ninja")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [path for path in own_cache.rglob("*") if ".partial-" in path.name]
    # Ninja's commands are groups of their own: the compiler lives on until it can read.
    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    pipe.unlink()
    pipe.write_text("#define VALUE 7\n")
    assert build(solution)() // 100 == 7
    assert not [path for path in own_cache.rglob("*") if ".partial-" in path.name]


def test_a_changed_header_outside_is_noticed(
    make_solution, source, definition, own_cache, tmp_path
):
    header = tmp_path / "value.h"
    header.write_text("#define VALUE 1\n")
    os.utime(header, (1, 1))
    files = {"main.cpp": "#include <value.h>\n" + source("bare.cpp")}
    solution = make_solution(files=files, compile_options={"include_paths": [str(tmp_path)]})
    made = [TorchBuilder().compile(definition, solution) for _ in range(2)]
    assert [artefact.fresh for artefact in made] == [True, False]
    assert str(header) in made[0].info.headers
    header.write_text("#define VALUE 22\n")
    again = TorchBuilder().compile(definition, solution)
    assert again.fresh
    assert again.info.library_sha256 != made[0].info.library_sha256

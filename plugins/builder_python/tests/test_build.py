"""Solutions that can be built."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fib_builder_python.builder import PythonBuilder


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestRunnable:
    def test_it_computes(self, build, make_solution, inputs):
        assert torch.equal(build(make_solution())(*inputs), expected(inputs))

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution(name="my kernel")).metadata
        assert metadata.build_type == "python"
        assert metadata.definition_name == definition.name
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.misc["entry_point"] == "main.py::run"
        assert metadata.misc["package"].startswith("fib_python_my_kernel_")

    def test_can_build(self, make_solution):
        builder = PythonBuilder()
        assert builder.is_available()
        assert builder.can_build(make_solution())
        assert builder.can_build(make_solution(language="Python"))
        assert not builder.can_build(make_solution(language="triton"))


class TestConvention:
    def test_solutions_of_the_first_release(self, build, make_solution, inputs):
        # Capitalised language, no convention stated, and everything taken by *args.
        source = (
            "import torch\ndef run(*args, **kwargs):\n    return (args[0] + args[1]) * args[2]\n"
        )
        runnable = build(make_solution(source, language="Python", build_steps=None))
        assert torch.equal(runnable(*inputs), expected(inputs))


class TestCleanup:
    def test_a_process_leaves_no_files_behind(self, make_solution, definition, cache_folder):
        code = (
            "import sys\n"
            "from fib_builder_python.builder import PythonBuilder\n"
            "from flashinfer_bench.data import Definition, Solution\n"
            "d, s = Definition.model_validate_json(sys.argv[1]), "
            "Solution.model_validate_json(sys.argv[2])\n"
            "print(PythonBuilder().build(d, s).metadata.solution_name)\n"
        )
        arguments = [
            definition.model_dump_json(),
            make_solution().model_dump_json(exclude_unset=True),
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout == "my_solution\n"
        assert [file for file in cache_folder.rglob("*") if file.is_file()] == []

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
    def test_forked_children_build_on_their_own(self, build, make_solution, inputs, definition):
        build(make_solution())
        children = []
        for index in range(4):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    source = f"def run(x, y, scale):\n    return {index}\n"
                    runnable = PythonBuilder().build(definition, make_solution(source))
                    code = 0 if runnable(*inputs) == index else 2
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0] * 4
        assert build(make_solution()) is not None

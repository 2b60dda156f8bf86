"""Solutions that can be built."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest
import torch

from fib_builder_python.builder import PythonBuilder

RETURNS = "def run(x, y, scale):\n    return (x + y) * scale\n"
WRITES = "def run(x, y, scale, out):\n    out.copy_((x + y) * scale)\n"


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestRunnable:
    def test_it_computes(self, build, make_solution, inputs):
        assert torch.equal(build(make_solution())(*inputs), expected(inputs))

    def test_by_name(self, build, make_solution, inputs):
        x, y, scale = inputs
        assert torch.equal(build(make_solution())(scale=scale, y=y, x=x), expected(inputs))

    def test_the_parameters_may_have_other_names(self, build, make_solution, inputs):
        x, y, scale = inputs
        runnable = build(make_solution("def run(a, b, c):\n    return (a + b) * c\n"))
        assert torch.equal(runnable(x=x, y=y, scale=scale), expected(inputs))

    def test_destination_passing(self, build, make_solution, inputs):
        runnable = build(make_solution(WRITES, destination_passing_style=True))
        out = torch.empty(3, 8)
        assert runnable(*inputs, out) is None
        assert torch.equal(out, expected(inputs))
        assert torch.equal(runnable.call_value_returning(*inputs), expected(inputs))

    def test_value_returning_called_with_destinations(self, build, make_solution, inputs):
        runnable = build(make_solution(destination_passing_style=False))
        out = torch.empty(3, 8)
        runnable.call_destination_passing(*inputs, out)
        assert torch.equal(out, expected(inputs))

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution(name="my kernel")).metadata
        assert metadata.build_type == "python"
        assert metadata.definition_name == definition.name
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.misc["entry_point"] == "main.py::run"
        assert metadata.misc["package"].startswith("fib_python_my_kernel_")

    def test_several_outputs(self, build, make_solution, inputs, two_outputs):
        source = "def run(x, y, scale):\n    z = (x + y) * scale\n    return z, z.sum(-1)\n"
        out, total = build(make_solution(source), two_outputs)(*inputs)
        assert torch.equal(out, expected(inputs))
        assert torch.equal(total, expected(inputs).sum(-1))

    def test_several_outputs_by_name(self, build, make_solution, inputs, two_outputs):
        source = (
            "def run(x, y, s):\n    z = (x + y) * s\n    return {'total': z.sum(-1), 'out': z}\n"
        )
        out, total = build(make_solution(source), two_outputs)(*inputs)
        assert torch.equal(out, expected(inputs))
        assert tuple(total.shape) == (3,)

    def test_can_build(self, make_solution):
        builder = PythonBuilder()
        assert builder.is_available()
        assert builder.can_build(make_solution())
        assert builder.can_build(make_solution(language="Python"))
        assert not builder.can_build(make_solution(language="triton"))


class TestConvention:
    """Files of all releases: some state the convention, some do not, some cannot be told."""

    @pytest.mark.parametrize(
        ("source", "destination_passing"),
        [
            (RETURNS, False),
            (WRITES, True),
            ("def run(*args, **kwargs):\n    x, y, s = args\n    return (x + y) * s\n", False),
            ("def run(x, y, scale=None):\n    return (x + y) * scale\n", False),
            ("def run(x, y, scale, eps=1e-6):\n    return (x + y) * scale\n", False),
            ("def run(x, y, scale, **kwargs):\n    return (x + y) * scale\n", False),
            ("def run(*args) -> None:\n    x, y, s, o = args\n    o.copy_((x + y) * s)\n", True),
            (
                "import torch\n"
                "def run(x: torch.Tensor, y: torch.Tensor, scale: float, *a) -> torch.Tensor:\n"
                "    return (x + y) * scale\n",
                False,
            ),
        ],
    )
    def test_where_it_is_not_stated_the_signature_tells(
        self, build, make_solution, inputs, source, destination_passing
    ):
        runnable = build(make_solution(source))
        assert runnable.metadata.destination_passing_style is destination_passing
        assert torch.equal(runnable.call_value_returning(*inputs), expected(inputs))

    def test_solutions_of_the_first_release(self, build, make_solution, inputs):
        # Capitalised language, no convention stated, and everything taken by *args.
        source = (
            "import torch\ndef run(*args, **kwargs):\n    return (args[0] + args[1]) * args[2]\n"
        )
        runnable = build(make_solution(source, language="Python", build_steps=None))
        assert torch.equal(runnable(*inputs), expected(inputs))

    def test_a_decorated_function(self, build, make_solution, inputs):
        source = (
            "import functools, torch\n"
            "def log(f):\n"
            "    @functools.wraps(f)\n"
            "    def inner(*args):\n"
            "        return f(*args)\n"
            "    return inner\n"
            "@torch.no_grad()\n@log\n"
            "def run(x, y, scale):\n    return (x + y) * scale\n"
        )
        assert torch.equal(build(make_solution(source))(*inputs), expected(inputs))


class TestFiles:
    def test_helpers_by_both_kinds_of_import(self, build, make_solution, inputs):
        files = {
            "main.py": "import ops\nfrom .consts import BIAS\n"
            "def run(x, y, scale):\n    return ops.add(x, y) * scale + BIAS\n",
            "ops.py": "from consts import BIAS\ndef add(a, b):\n    return a + b\n",
            "consts.py": "BIAS = 0\n",
        }
        assert torch.equal(build(make_solution(files=files))(*inputs), expected(inputs))

    def test_an_entry_in_a_folder(self, build, make_solution, inputs):
        files = {"src/kernels/main.py": RETURNS, "README.md": "# hi"}
        runnable = build(make_solution(files=files, entry="src/kernels/main.py::run"))
        assert torch.equal(runnable(*inputs), expected(inputs))

    def test_data_beside_the_code(self, build, make_solution, inputs):
        files = {
            "main.py": "import json, pathlib\n"
            "C = json.loads(pathlib.Path(__file__).with_name('tuned.json').read_text())\n"
            "def run(x, y, scale):\n    return (x + y) * scale * C['factor']\n",
            "tuned.json": '{"factor": 1}',
        }
        assert torch.equal(build(make_solution(files=files))(*inputs), expected(inputs))

    def test_the_source_of_the_function_can_be_read(self, build, make_solution):
        runnable = build(make_solution())
        assert inspect.getsource(runnable._callable) == RETURNS


class TestIsolation:
    def files(self, factor):
        return {
            "main.py": "import helper\nfrom .lib.tool import twice\n"
            "def run(x, y, scale):\n    import late\n    return twice(helper.F) + late.G\n",
            "helper.py": f"F = {factor}\n",
            "late.py": "import helper\nG = helper.F * 100\n",
            "lib/tool.py": "def twice(v):\n    return 2 * v\n",
        }

    def test_solutions_with_the_same_file_names_do_not_meet(self, build, make_solution, inputs):
        runnables = [build(make_solution(files=self.files(i))) for i in range(4)]
        for _ in range(2):
            assert [r(*inputs) for r in runnables] == [102 * i for i in range(4)]

    def test_module_state_is_not_shared_between_solutions(self, build, make_solution, inputs):
        source = "STATE = []\ndef run(x, y, scale):\n    STATE.append(1)\n    return len(STATE)\n"
        first = build(make_solution(source + "# first"))
        second = build(make_solution(source + "# second"))
        assert [first(*inputs), first(*inputs), second(*inputs)] == [1, 2, 1]

    def test_neither_path_nor_modules_change_for_others(self, build, make_solution):
        path, modules = list(sys.path), set(sys.modules)
        runnable = build(make_solution(files=self.files(1)))
        assert sys.path == path
        added = set(sys.modules) - modules
        assert all(name.startswith("fib_python_") for name in added)
        runnable.cleanup()
        assert set(sys.modules) == modules

    def test_a_solution_named_like_a_library_does_no_harm(self, build, make_solution, inputs):
        files = {"torch.py": "import torch\n" + RETURNS, "numpy.py": "raise ImportError('fake')"}
        runnable = build(make_solution(files=files, entry="torch.py::run"))
        assert torch.equal(runnable(*inputs), expected(inputs))
        assert sys.modules["torch"] is torch


class TestCleanup:
    def test_files_go_and_the_runnable_refuses(self, build, make_solution, inputs, cache_folder):
        runnable = build(make_solution())
        assert len(list(cache_folder.rglob("main.py"))) == 1
        runnable.cleanup()
        runnable.cleanup()
        assert list(cache_folder.rglob("main.py")) == []
        with pytest.raises(RuntimeError, match="cleaned up"):
            runnable(*inputs)

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

"""Solutions that can be built."""

import importlib.util
import os

import pytest
import torch

from fib_builder_python.builder import PythonBuilder, probe


def test_solutions_of_the_first_release(build, make_solution, inputs, expected):
    # Capitalised language, no convention stated, and everything taken by *args.
    source = "import torch\ndef run(*args, **kwargs):\n    return (args[0] + args[1]) * args[2]\n"
    runnable = build(make_solution(source, language="Python", build_steps=None))
    assert torch.equal(runnable(*inputs), expected)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_forked_children_build_on_their_own(build, make_solution, inputs, definition):
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


def test_the_probe_says_which_python():
    assert probe().ok
    assert probe().reason.startswith("Python 3.")


def test_without_torch_the_probe_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "flashinfer_bench.compile.machine.find_spec",
        lambda name: None if name == "torch" else find(name),
    )
    answer = probe()
    assert not answer.ok
    assert "torch is not installed" in answer.reason
    assert "pip install" in answer.remedy

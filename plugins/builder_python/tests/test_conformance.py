"""The builder keeps to the contract of all builders."""

from __future__ import annotations

import pytest

import fib_builder_python
from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

DEFINITION = sample_definition()
RETURNS = "import helper\n\n\ndef run(x, y, scale):\n    return helper.add(x, y) * scale\n"
WRITES = "def run(x, y, scale, out):\n    out.copy_((x + y) * scale)\n"
HELPER = "def add(a, b):\n    return a + b\n"


def solution(sources: dict[str, str], name: str = "scaled_add", **spec):
    return make_solution(DEFINITION, sources, "main.py::run", language="python", name=name, **spec)


class TestPythonBuilder(BuilderConformance):
    @pytest.fixture
    def case(self) -> BuilderCase:
        (record,) = fib_builder_python.fib_register_builders()
        return BuilderCase(
            record=record,
            definition=DEFINITION,
            solution=solution({"main.py": RETURNS, "helper.py": HELPER}),
            twin=solution({"main.py": RETURNS, "helper.py": HELPER.replace("+", "-")}),
            other_style=solution({"main.py": WRITES}, destination_passing_style=True),
            failing=(
                FailingSolution(
                    solution=solution({"main.py": "def run(x):\n    return x\n"}, name="one"),
                    expect="Value-returning takes 3 arguments",
                ),
            ),
        )


class TestPythonPlugin(PluginConformance):
    @pytest.fixture
    def case(self) -> str:
        return "fib_builder_python"

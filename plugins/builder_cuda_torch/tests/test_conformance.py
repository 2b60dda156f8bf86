"""The builder keeps to the contract of all builders."""

from __future__ import annotations

from pathlib import Path

import pytest

import fib_builder_cuda_torch
from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

SOURCES = Path(__file__).parent / "sources"
DEFINITION = sample_definition()
CPU, CUDA = fib_builder_cuda_torch.fib_register_builders()


def solution(*names, language="cpp", edit=lambda text: text, **spec):
    files = {name: edit((SOURCES / name).read_text(encoding="utf-8")) for name in names}
    spec.setdefault("binding", "torch")
    return make_solution(DEFINITION, files, f"{names[0]}::run", language=language, **spec)


class TestOperators(BuilderConformance):
    """Operators with the stable ABI."""

    @pytest.fixture
    def case(self) -> BuilderCase:
        one = solution(
            "writes.cpp",
            name="one argument",
            edit=lambda text: text.replace("Tensor x, Tensor y, float scale, Tensor(a!) out", ""),
        )
        return BuilderCase(
            record=CPU,
            definition=DEFINITION,
            solution=solution("writes.cpp", destination_passing_style=True),
            twin=solution("writes.cpp", edit=lambda text: text.replace("a[i] + b", "a[i] - b")),
            other_style=solution("returns.cpp", name="returns", destination_passing_style=False),
            failing=(FailingSolution(solution=one, expect="Value-returning takes 3 arguments"),),
        )


@pytest.mark.gpu
class TestCuda(BuilderConformance):
    """A module with a kernel."""

    @pytest.fixture
    def case(self) -> BuilderCase:
        return BuilderCase(
            record=CUDA,
            definition=DEFINITION,
            device="cuda",
            solution=solution("binding.cpp", "kernel.cu", language="cuda"),
            twin=solution(
                "binding.cpp",
                "kernel.cu",
                language="cuda",
                edit=lambda text: text.replace("x[i] + y[i]", "x[i] - y[i]"),
            ),
        )


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "fib_builder_cuda_torch"

"""The builder keeps to the contract of all builders; shown with the interpreter."""

from __future__ import annotations

import pytest

import fib_builder_triton
from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

DEFINITION = sample_definition()
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
HELPERS = HEAD + "\n\n@triton.jit\ndef combine(a, b):\n    return a + b\n"
KERNEL = """
from helpers import combine


@triton.jit
def kernel(x, y, out, scale, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(out + at, combine(a, b) * scale, mask=at < n)


"""
WRITES = (
    HEAD + KERNEL + "def run(x, y, scale, out):\n    n = x.numel()\n"
    "    kernel[(triton.cdiv(n, 256),)](x, y, out, scale, n, BLOCK=256)\n"
)
RETURNS = (
    WRITES.replace("scale, out):", "scale):").replace(
        "    kernel[", "    out = torch.empty_like(x)\n    kernel["
    )
    + "    return out\n"
)


def solution(main: str, helpers: str = HELPERS, name: str = "scaled_add", **spec):
    return make_solution(
        DEFINITION,
        {"main.py": main, "helpers.py": helpers},
        "main.py::run",
        language="triton",
        name=name,
        **spec,
    )


@pytest.mark.usefixtures("interpreted")
class TestTritonBuilder(BuilderConformance):
    @pytest.fixture
    def case(self) -> BuilderCase:
        _, record = fib_builder_triton.fib_register_builders()
        return BuilderCase(
            record=record,
            definition=DEFINITION,
            solution=solution(RETURNS),
            twin=solution(RETURNS, HELPERS.replace("a + b", "a - b")),
            other_style=solution(WRITES, destination_passing_style=True),
            failing=(
                FailingSolution(
                    solution=solution(HEAD + "@triton.jit\ndef run(x, y, scale):\n    pass\n"),
                    expect="is a Triton kernel",
                ),
            ),
        )


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "fib_builder_triton"

"""Solutions that can be built, run by the interpreter."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("interpreted")


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestFiles:
    HELPERS = (
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef add(a, b):\n    return a + b\n"
        "@triton.jit\ndef row_sum(a):\n    return tl.sum(a, axis=0) + tl.zeros((), tl.float32)\n"
    )
    MAIN = (
        "import torch, triton\nimport triton.language as tl\n{imports}\n"
        "@triton.jit\n"
        "def kernel(x, y, out, scale, n, BLOCK: tl.constexpr):\n"
        "    at = tl.arange(0, BLOCK)\n"
        "    a = tl.load(x + at, mask=at < n, other=0.0)\n"
        "    b = tl.load(y + at, mask=at < n, other=0.0)\n"
        "    tl.store(out + at, {call}(a, b) * scale, mask=at < n)\n"
        "def run(x, y, scale):\n"
        "    out = torch.empty_like(x)\n"
        "    kernel[(1,)](x, y, out, scale, x.numel(), BLOCK=32)\n"
        "    return out\n"
    )

    @pytest.mark.parametrize(
        ("imports", "call"),
        [
            ("from .ops.helpers import add", "add"),
            ("from ops.helpers import add", "add"),
            ("import ops.helpers as helpers", "helpers.add"),
        ],
    )
    def test_functions_for_kernels_in_another_file(
        self, build, make_solution, inputs, imports, call
    ):
        files = {
            "main.py": self.MAIN.format(imports=imports, call=call),
            "ops/helpers.py": self.HELPERS,
        }
        assert torch.equal(build(make_solution(files=files))(*inputs), expected(inputs))

"""Solutions that can be built, for the CPU."""

from __future__ import annotations

import torch

HEAD = "import torch\nimport tilelang\nimport tilelang.language as T\n"


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestEntryPoints:
    def test_a_function_that_is_called_with_tensors(self, build, make_solution, inputs):
        source = (
            HEAD + '@tilelang.jit(target="c", execution_backend="cython")\n'
            "def run(x, y, scale):\n"
            "    n = T.const('n')\n"
            "    x: T.Tensor((n, 8), 'float32')\n"
            "    y: T.Tensor((n, 8), 'float32')\n"
            "    scale: T.float32\n"
            "    out = T.empty((n, 8), 'float32')\n"
            "    with T.Kernel(1) as _:\n"
            "        for i, j in T.grid(n, 8):\n"
            "            out[i, j] = (x[i, j] + y[i, j]) * scale\n"
            "    return out\n"
        )
        runnable = build(make_solution(source, destination_passing_style=False))
        assert torch.equal(runnable(*inputs), expected(inputs))
        fewer = (inputs[0][:2], inputs[1][:2], 2.0)
        assert torch.equal(runnable(*fewer), expected(fewer))

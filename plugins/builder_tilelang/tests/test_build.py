"""Solutions that can be built, for the CPU."""

from __future__ import annotations

import torch

from fib_builder_tilelang.builder import TileLangBuilder

HEAD = "import torch\nimport tilelang\nimport tilelang.language as T\n"
COMPILED = (
    HEAD
    + """
@T.prim_func
def kernel(x: T.Tensor((24,), "float32"), out: T.Tensor((24,), "float32")):
    with T.Kernel(1) as _:
        for i in T.serial(24):
            out[i] = x[i] * CONSTANT

compiled = tilelang.compile(kernel, OPTIONS target="c", execution_backend="cython")
"""
)


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


class TestRunnable:
    def test_can_build(self, make_solution):
        builder = TileLangBuilder()
        assert builder.is_available()
        assert builder.can_build(make_solution())
        assert builder.can_build(make_solution(language="TileLang"))
        assert not builder.can_build(make_solution(language="triton"))


class TestEntryPoints:
    def test_a_kernel_compiled_while_the_file_is_imported(self, build, make_solution, inputs):
        source = COMPILED.replace("CONSTANT", "3.0").replace("OPTIONS", "out_idx=[-1],")
        source += "def run(x, y, scale):\n    return compiled(x.flatten()).view(x.shape)\n"
        assert torch.equal(build(make_solution(source))(*inputs), inputs[0] * 3)

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

"""Solutions that can be built, for the CPU."""

from __future__ import annotations

import sys

import pytest
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
    def test_it_computes(self, build, make_solution, inputs):
        assert torch.equal(build(make_solution())(*inputs), expected(inputs))

    def test_by_name(self, build, make_solution, inputs):
        x, y, scale = inputs
        assert torch.equal(build(make_solution())(scale=scale, y=y, x=x), expected(inputs))

    def test_destination_passing(self, build, make_solution, inputs, sources):
        runnable = build(make_solution(sources["writes"], destination_passing_style=True))
        out = torch.empty(3, 8)
        assert runnable(*inputs, out) is None
        assert torch.equal(out, expected(inputs))
        assert torch.equal(runnable.call_value_returning(*inputs), expected(inputs))

    @pytest.mark.parametrize(("kind", "passes"), [("returns", False), ("writes", True)])
    def test_where_the_convention_is_not_stated_the_signature_tells(
        self, build, make_solution, sources, kind, passes
    ):
        assert build(make_solution(sources[kind])).metadata.destination_passing_style is passes

    def test_metadata(self, build, make_solution, definition):
        metadata = build(make_solution(name="my kernel")).metadata
        assert metadata.build_type == "tilelang"
        assert metadata.definition is definition
        assert metadata.solution_name == "my kernel"
        assert metadata.misc["entry_point"] == "main.py::run"
        assert metadata.misc["package"].startswith("fib_tilelang_my_kernel_")

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


class TestFiles:
    def files(self, factor):
        return {
            "main.py": "import consts\nfrom .kernels import scaled_add\n"
            "def run(x, y, scale):\n"
            "    n, scale = x.numel(), scale * consts.FACTOR\n"
            "    return scaled_add(n)(x.flatten(), y.flatten(), scale).view(x.shape)\n",
            "consts.py": f"FACTOR = {factor}\n",
        }

    def test_solutions_with_the_same_file_names_do_not_meet(
        self, build, make_solution, inputs, sources
    ):
        kernels = sources["returns"]
        other = kernels.replace("x[i] + y[i]", "x[i] - y[i]")
        plus = build(make_solution(files=self.files(2) | {"kernels.py": kernels}))
        minus = build(make_solution(files=self.files(4) | {"kernels.py": other}))
        x, y, scale = inputs
        for _ in range(2):
            assert torch.equal(plus(*inputs), (x + y) * scale * 2)
            assert torch.equal(minus(*inputs), (x - y) * scale * 4)

    def test_files_and_modules_go(self, build, make_solution, inputs, cache_folder):
        build(make_solution())
        path = list(sys.path)
        runnable = build(make_solution())
        runnable(*inputs)
        package = runnable.metadata.misc["package"]
        assert sys.path == path
        runnable.cleanup()
        assert [name for name in sys.modules if name.startswith(package)] == []
        with pytest.raises(RuntimeError, match="cleaned up"):
            runnable(*inputs)

    def test_a_huge_source(self, build, make_solution, inputs, sources):
        padding = "".join(f"CONSTANT_{i} = {i}  # {'x' * 80}\n" for i in range(40_000))
        assert len(padding) > 4_000_000
        runnable = build(make_solution(sources["returns"] + padding))
        assert torch.equal(runnable(*inputs), expected(inputs))

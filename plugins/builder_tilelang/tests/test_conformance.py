"""The builder keeps to the contract of all builders; shown with kernels for the CPU."""

from __future__ import annotations

import pytest

import fib_builder_tilelang
from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

DEFINITION = sample_definition()
KERNEL = """
import tilelang
import tilelang.language as T
from helpers import combine


@tilelang.jit(target="c", execution_backend="cython")
def make(n):
    @T.prim_func
    def kernel(
        x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), scale: T.float32,
        out: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(1) as _:
            for i in T.serial(n):
                out[i] = combine(x[i], y[i]) * scale

    return kernel


"""
WRITES = KERNEL + (
    "def run(x, y, scale, out):\n"
    "    make(x.numel())(x.flatten(), y.flatten(), scale, out.flatten())\n"
)
RETURNS = KERNEL.replace('"c"', '"c", out_idx=[-1]') + (
    "def run(x, y, scale):\n"
    "    return make(x.numel())(x.flatten(), y.flatten(), scale).view(x.shape)\n"
)
HELPERS = "def combine(a, b):\n    return a + b\n"

# See loading.py for what is taken back.
TOLERATED = {
    "sys.path": "its folders stand at the end; modules for some devices are looked for there",
    "sys.meta_path": "TVM finds its own modules with it",
    "temp: tmp": "a source and a library for each kernel, which it never removes",
    "env:TL_CUTLASS_PATH": "read when it compiles",
    "env:TL_TEMPLATE_PATH": "read when it compiles",
    "env:TVM_LIBRARY_PATH": "read when it loads libraries",
}


def solution(main: str, helpers: str = HELPERS, name: str = "scaled_add", **spec):
    return make_solution(
        DEFINITION,
        {"main.py": main, "helpers.py": helpers},
        "main.py::run",
        language="tilelang",
        name=name,
        **spec,
    )


class TestTileLangBuilder(BuilderConformance):
    @pytest.fixture
    def case(self) -> BuilderCase:
        (record,) = fib_builder_tilelang.fib_register_builders()
        return BuilderCase(
            record=record,
            definition=DEFINITION,
            solution=solution(RETURNS),
            twin=solution(RETURNS, HELPERS.replace("+", "-")),
            other_style=solution(WRITES, destination_passing_style=True),
            failing=(
                FailingSolution(
                    solution=solution(RETURNS.replace("T.prim_func", "T.nosuch") + "make(8)\n"),
                    expect="has no attribute 'nosuch'",
                ),
            ),
            tolerates=TOLERATED,
        )


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "fib_builder_tilelang"

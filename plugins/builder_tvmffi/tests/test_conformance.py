"""The plugin and its builder keep to the contract of all plugins and builders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fib_builder_tvmffi
from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    PluginConformance,
    make_solution,
    sample_definition,
)

KERNELS = Path(__file__).parent / "kernels"
DEFINITION = sample_definition()
CPU, CUDA = fib_builder_tvmffi.fib_register_builders()
# One class serves both records: each alone does not say all that the class can build.
HANDLES = (*CPU.handles, *CUDA.handles)

TYPED = (KERNELS / "typed.h").read_text()
WRITES = '#include "typed.h"\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Add)\n'
RETURNS = '#include "typed.h"\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Sum)\n'


def cpp(main: str, typed: str = TYPED, name: str = "scaled_add", **spec):
    files = {"main.cpp": main, "typed.h": typed}
    return make_solution(DEFINITION, files, "main.cpp::run", language="cpp", name=name, **spec)


def cuda(symbol: str, scale: str = "v * s", name: str = "scaled_add", **spec):
    files = {
        "add.cu": (KERNELS / "add.cu").read_text(),
        "scale.cuh": f"__device__ inline float scaled(float v, float s) {{ return {scale}; }}\n",
    }
    entry = f"add.cu::{symbol}"
    return make_solution(DEFINITION, files, entry, language="cuda", name=name, **spec)


class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self) -> str:
        return "fib_builder_tvmffi"


class TestCpp(BuilderConformance):
    @pytest.fixture
    def case(self) -> BuilderCase:
        one = '#include "typed.h"\nstatic void F(ffi::TensorView) {}\n'
        return BuilderCase(
            record=replace(CPU, handles=HANDLES),
            definition=DEFINITION,
            solution=cpp(WRITES, destination_passing_style=True),
            twin=cpp(WRITES, TYPED.replace("a[i] + b[i]", "a[i] - b[i]")),
            other_style=cpp(RETURNS, name="returns", destination_passing_style=False),
            failing=(
                FailingSolution(
                    solution=cpp(f"{one}TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, F)\n", name="one"),
                    expect="Value-returning takes 3 arguments",
                ),
            ),
        )


@pytest.mark.gpu
class TestCuda(BuilderConformance):
    @pytest.fixture
    def case(self) -> BuilderCase:
        return BuilderCase(
            record=replace(CUDA, handles=HANDLES),
            definition=DEFINITION,
            device="cuda",
            solution=cuda("run", destination_passing_style=True),
            twin=cuda("run", "v - s"),
            other_style=cuda("sum", name="returns", destination_passing_style=False),
        )

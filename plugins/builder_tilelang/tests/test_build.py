"""Solutions that can be built, for the CPU."""

import shutil
from pathlib import Path

import pytest
import torch

from fib_tests.scaled_add import run_example

HEAD = "import torch\nimport tilelang\nimport tilelang.language as T\n"


def test_a_function_that_is_called_with_tensors(build, make_solution, inputs, expected):
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
    assert torch.equal(runnable(*inputs), expected)
    x, y, scale = inputs
    assert torch.equal(runnable(x[:2], y[:2], scale), expected[:2])


SOURCE = """
import tilelang
import tilelang.language as T

@T.prim_func
def gemm(
    a: T.Tensor((128, 128), "float16"), b: T.Tensor((128, 128), "float16"),
    c: T.Tensor((128, 128), "float32"),
):
    with T.Kernel(1, threads=128) as _:
        left = T.alloc_shared((128, 64), "float16")
        right = T.alloc_shared((64, 128), "float16")
        total = T.alloc_fragment((128, 128), "float32")
        T.clear(total)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(a[0, k * 64], left)
            T.copy(b[k * 64, 0], right)
            T.gemm(left, right, total)
        T.copy(total, c)

compiled = tilelang.compile(gemm, target={"kind": "cuda", "arch": "sm_90a"})

def run(x, y, scale):
    return compiled.get_kernel_source()
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not in PATH")
def test_a_kernel_for_hopper(build, make_solution, inputs):
    runnable = build(make_solution(SOURCE, target_hardware=["cuda"]))
    source = runnable(*inputs)
    assert "__global__" in source
    assert "wgmma" in source


README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_the_readme_runs(tmp_path):
    printed = run_example(README, tmp_path).stdout
    assert printed.endswith("<Runnable 'scale_tilelang': tilelang>\n")

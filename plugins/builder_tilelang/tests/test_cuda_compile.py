"""Compiling for a GPU on a machine that may have none."""

from __future__ import annotations

import shutil

import pytest

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

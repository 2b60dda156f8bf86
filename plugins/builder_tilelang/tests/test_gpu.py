"""Kernels that run on a GPU; skipped where there is none."""

import json
from importlib.util import find_spec

import pytest
import torch

from flashinfer_bench.data import Definition
from flashinfer_bench.errors import BuildError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(find_spec("tilelang") is None, reason="tilelang is not installed"),
]

MATRIX = {"shape": ["m", "k"], "dtype": "float16"}
GEMM = {
    "name": "gemm_m256_n128_k256",
    "op_type": "gemm",
    "axes": {
        "m": {"type": "const", "value": 256},
        "n": {"type": "const", "value": 128},
        "k": {"type": "const", "value": 256},
    },
    "inputs": {"a": MATRIX, "b": {"shape": ["k", "n"], "dtype": "float16"}},
    "outputs": {"c": {"shape": ["m", "n"], "dtype": "float32"}},
    "reference": "def run(a, b):\n    return a.float() @ b.float()\n",
}
KERNEL = """
import tilelang
import tilelang.language as T

@tilelang.jit(OPTIONS target="cuda")
def gemm(M, N, K):
    @T.prim_func
    def kernel(
        a: T.Tensor((M, K), "float16"), b: T.Tensor((K, N), "float16"),
        c: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 128), threads=128) as row:
            left = T.alloc_shared((128, 64), "float16")
            right = T.alloc_shared((64, N), "float16")
            total = T.alloc_fragment((128, N), "float32")
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(a[row * 128, step * 64], left)
                T.copy(b[step * 64, 0], right)
                T.gemm(left, right, total)
            T.copy(total, c[row * 128, 0])
    return kernel
"""
RETURNS = KERNEL.replace("OPTIONS", "out_idx=[-1],") + (
    "\ndef run(a, b):\n    return gemm(a.shape[0], b.shape[1], a.shape[1])(a, b)\n"
)
TOO_MUCH = RETURNS.replace("(128, 64)", "(128, 65536)")


@pytest.fixture
def gemm():
    return Definition.model_validate_json(json.dumps(GEMM))


@pytest.fixture
def matrices():
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((256, 256), (256, 128))
    half = torch.float16
    return [torch.randn(s, generator=generator, device="cuda", dtype=half) for s in shapes]


def wanted(a, b):
    return a.float() @ b.float()


def test_it_works_on_the_current_stream(build, make_solution, gemm, matrices):
    runnable = build(make_solution(RETURNS, target_hardware=["cuda"]), gemm)
    runnable(*matrices)  # compiles
    a, b = matrices
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # whatever does not wait for this stream sees the old values
        a.mul_(2)
        result = runnable(a, b)
    side.synchronize()
    torch.testing.assert_close(result, wanted(a, b), rtol=1e-2, atol=1e-2)


def test_what_the_device_has_no_room_for_is_a_build_error(build, make_solution, gemm, matrices):
    runnable = build(make_solution(TOO_MUCH, target_hardware=["cuda"]), gemm)
    with pytest.raises(BuildError) as caught:
        runnable(*matrices)
    assert caught.value.log

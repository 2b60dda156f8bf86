"""C = A @ B.T in Triton, tile by tile, in full fp32."""

import torch
import triton
import triton.language as tl


@triton.jit
def _gemm(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = rows[:, None] < M
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, K, BK):
        depth = begin + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + depth[None, :], mask=inside, other=0.0)
        b = tl.load(b_ptr + columns[None, :] * K + depth[:, None])
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total, mask=inside)


def run(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    M, K = A.shape
    N = B.shape[0]
    C = torch.empty((M, N), dtype=A.dtype, device=A.device)
    grid = (triton.cdiv(M, 32), N // 128)
    _gemm[grid](A, B, C, M, N, K, BM=32, BN=128, BK=64)
    return C

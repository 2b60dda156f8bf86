"""RMSNorm in Triton: one program normalises sixteen rows."""

import torch
import triton
import triton.language as tl

ROWS = 16
EPS = 1e-6


@triton.jit
def _rmsnorm(x_ptr, weight_ptr, out_ptr, tokens, eps, ROWS: tl.constexpr, HIDDEN: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HIDDEN)
    places = rows[:, None] * HIDDEN + columns[None, :]
    inside = (rows < tokens)[:, None]
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / HIDDEN + eps)
    normalised = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + places, normalised.to(tl.bfloat16), mask=inside)


def run(hidden_states: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
    tokens, hidden = hidden_states.shape
    grid = (triton.cdiv(tokens, ROWS),)
    _rmsnorm[grid](hidden_states, weight, output, tokens, EPS, ROWS=ROWS, HIDDEN=hidden)

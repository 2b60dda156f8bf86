"""Residual addition and RMSNorm in one Triton kernel, sixteen rows to a program."""

import torch
import triton
import triton.language as tl

ROWS = 16
EPS = 1e-6


@triton.jit
def _add_rmsnorm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, tokens, eps, ROWS: tl.constexpr, HIDDEN: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HIDDEN)
    places = rows[:, None] * HIDDEN + columns[None, :]
    inside = (rows < tokens)[:, None]
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + places, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / HIDDEN + eps)
    normalised = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + places, normalised.to(tl.bfloat16), mask=inside)


def run(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    tokens, hidden = hidden_states.shape
    output = torch.empty_like(hidden_states)
    _add_rmsnorm[(triton.cdiv(tokens, ROWS),)](
        hidden_states, residual, weight, output, tokens, EPS, ROWS=ROWS, HIDDEN=hidden
    )
    return output

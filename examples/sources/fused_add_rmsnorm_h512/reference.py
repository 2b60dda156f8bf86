"""Residual addition and RMSNorm, step by step in fp32."""

import torch

EPS = 1e-6


@torch.no_grad()
def run(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    assert hidden_states.shape[-1] == 512
    x = hidden_states.to(torch.float32) + residual.to(torch.float32)
    squares = torch.pow(x, 2)
    mean_square = torch.sum(squares, dim=-1, keepdim=True) / x.shape[-1]
    normalised = x / torch.sqrt(mean_square + EPS)
    scaled = normalised * weight.to(torch.float32)
    return scaled.to(hidden_states.dtype)

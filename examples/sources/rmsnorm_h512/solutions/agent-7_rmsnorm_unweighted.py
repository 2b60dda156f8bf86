"""Wrong numbers: normalises, but never applies the weight."""

import torch

EPS = 1e-6


@torch.no_grad()
def run(hidden_states: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
    x = hidden_states.float()
    torch.mul(x, torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS), out=output)

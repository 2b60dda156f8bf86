"""Right, but handles four tokens per step."""

import torch

EPS = 1e-6
STEP = 4


@torch.no_grad()
def run(
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
) -> None:
    for start in range(0, hidden_states.shape[0], STEP):
        rows = slice(start, start + STEP)
        x = hidden_states[rows].float() + residual[rows].float()
        output[rows] = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS) * weight

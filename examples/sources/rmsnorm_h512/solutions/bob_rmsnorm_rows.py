"""Right, but four rows at a time: the overhead of every operation is paid again and again."""

import torch

EPS = 1e-6


@torch.no_grad()
def run(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    parts = []
    for rows in hidden_states.split(4):
        x = rows.to(torch.float32)
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)
        parts.append((x * scale * weight).to(rows.dtype))
    return torch.cat(parts)

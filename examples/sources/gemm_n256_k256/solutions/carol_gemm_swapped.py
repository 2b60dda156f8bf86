"""Wrong shape: returns the transpose, [N, M]."""

import torch


@torch.no_grad()
def run(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.matmul(B, A.t())

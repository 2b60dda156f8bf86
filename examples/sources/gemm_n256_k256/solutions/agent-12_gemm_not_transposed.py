"""Wrong numbers: B is square, so that forgetting its transposition raises nothing."""

import torch


@torch.no_grad()
def run(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> None:
    torch.mm(A, B, out=C)

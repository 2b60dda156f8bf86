"""Wrong numbers: buys speed by rounding both operands to bf16."""

import torch


@torch.no_grad()
def run(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch.matmul(A.bfloat16(), B.bfloat16().t()).float()

"""Wrong number: the sum, not the mean."""

import torch


@torch.no_grad()
def run(prediction: torch.Tensor, target: torch.Tensor, loss: torch.Tensor) -> None:
    torch.sum((prediction - target) ** 2, dim=(0, 1), out=loss)

"""Crashes: a recursive reduction that never reaches its base case."""

import torch


def reduce_halves(values: torch.Tensor) -> torch.Tensor:
    middle = (values.numel() + 1) // 2
    return reduce_halves(values[:middle]) + reduce_halves(values[middle:])


@torch.no_grad()
def run(prediction: torch.Tensor, target: torch.Tensor, loss: torch.Tensor) -> None:
    loss.copy_(reduce_halves(((prediction - target) ** 2).flatten()))

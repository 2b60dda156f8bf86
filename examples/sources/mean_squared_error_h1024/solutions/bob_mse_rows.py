"""Right, but sums row by row in Python; returns a Python number."""

import torch


@torch.no_grad()
def run(prediction: torch.Tensor, target: torch.Tensor) -> float:
    total = 0.0
    for row in range(prediction.shape[0]):
        total += float(((prediction[row] - target[row]) ** 2).sum())
    return total / prediction.numel()

"""Row statistics in fp32."""

import torch

EPS = 1e-6


def inverse_rms_(x: torch.Tensor) -> torch.Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) per row, without a temporary of the size of `x`."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(EPS).rsqrt_()

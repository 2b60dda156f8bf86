"""Right, but one head at a time, and with a new look-up in the cache for each."""

import torch

HALF = 32


@torch.no_grad()
def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    for source, target in ((q, q_out), (k, k_out)):
        for head in range(source.shape[1]):
            cos, sin = cos_sin_cache[positions].split(HALF, dim=-1)
            first, second = source[:, head].float().split(HALF, dim=-1)
            target[:, head, :HALF] = first * cos - second * sin
            target[:, head, HALF:] = second * cos + first * sin

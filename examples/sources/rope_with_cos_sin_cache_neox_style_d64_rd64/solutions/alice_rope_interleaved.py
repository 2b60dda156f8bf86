"""Wrong numbers: pairs neighbouring dimensions (GPT-J style) instead of i and i + 32."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    pairs = (even * cos - odd * sin, odd * cos + even * sin)
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


@torch.no_grad()
def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    return rotate(q, cos, sin), rotate(k, cos, sin)

"""Rotary embedding, NeoX style, in fp32."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + 32]) by its angle."""
    first, second = x.to(torch.float32).chunk(2, dim=-1)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    return torch.cat((rotated_first, rotated_second), dim=-1).to(x.dtype)


@torch.no_grad()
def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert q.shape[-1] == 64
    assert cos_sin_cache.shape[-1] == 64
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return rotate(q, cos, sin), rotate(k, cos, sin)

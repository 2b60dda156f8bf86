"""Queries and keys joined along the heads, so that each operation runs once for both."""

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
    cos_sin = cos_sin_cache.index_select(0, positions).unsqueeze(1)
    cos, sin = cos_sin[..., :HALF], cos_sin[..., HALF:]
    x = torch.cat((q, k), dim=1).to(torch.float32)
    first, second = x[..., :HALF], x[..., HALF:]
    rotated = torch.empty_like(x)
    torch.mul(first, cos, out=rotated[..., :HALF]).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=rotated[..., HALF:]).addcmul_(first, sin)
    heads = q.shape[1]
    q_out.copy_(rotated[:, :heads])
    k_out.copy_(rotated[:, heads:])

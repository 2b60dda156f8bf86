"""x * cos + rotate_half(x) * sin, as model code usually writes it."""

import torch


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


@torch.no_grad()
def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    cos = torch.cat((cos, cos), dim=-1).unsqueeze(1)
    sin = torch.cat((sin, sin), dim=-1).unsqueeze(1)
    wide_q, wide_k = q.float(), k.float()
    q_out = wide_q * cos + rotate_half(wide_q) * sin
    k_out = wide_k * cos + rotate_half(wide_k) * sin
    return q_out.to(q.dtype), k_out.to(k.dtype)

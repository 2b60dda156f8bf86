"""Crashes: adds the size of the cache to every page number, so that none of them exists."""

import torch


@torch.no_grad()
def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    pages = (kv_indices + k_cache.shape[0]).long()
    keys = k_cache[pages, 0].float()
    values = v_cache[pages, 0].float()
    logits = torch.einsum("bhd,tkd->bhtk", q.float(), keys) * sm_scale
    weights = torch.softmax(logits, dim=2)
    output = torch.einsum("bhtk,tkd->bhd", weights, values)
    return output.to(q.dtype), torch.logsumexp(logits, dim=(2, 3))

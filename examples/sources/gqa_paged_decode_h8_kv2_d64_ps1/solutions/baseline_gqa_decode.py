"""One sequence at a time, with the heads of a group batched into one product."""

import math
from itertools import pairwise

import torch

LOG2_E = 1.0 / math.log(2.0)


@torch.no_grad()
def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_kv_heads, head_dim = k_cache.shape[2:]
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    bounds = kv_indptr.tolist()
    for sequence, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        pages = kv_indices[start:end]
        keys = k_cache[:, 0].index_select(0, pages).float()
        values = v_cache[:, 0].index_select(0, pages).float()
        query = q[sequence].float().view(num_kv_heads, -1, head_dim) * sm_scale
        logits = torch.matmul(query, keys.permute(1, 2, 0))
        total = torch.logsumexp(logits, dim=-1, keepdim=True)
        lse[sequence] = (total * LOG2_E).view(-1)
        weights = torch.exp(logits - total)
        output[sequence] = torch.matmul(weights, values.transpose(0, 1)).view(-1, head_dim)
    return output, lse

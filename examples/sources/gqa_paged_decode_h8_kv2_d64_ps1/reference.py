"""Paged GQA decode, one sequence at a time in fp32."""

import math

import torch

NUM_QO_HEADS, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 64, 1


@torch.no_grad()
def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert tuple(q.shape[1:]) == (NUM_QO_HEADS, HEAD_DIM)
    assert tuple(k_cache.shape[1:]) == (PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM)
    assert kv_indices.shape[0] == int(kv_indptr[-1])

    group = NUM_QO_HEADS // NUM_KV_HEADS
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    for sequence in range(q.shape[0]):
        start, end = int(kv_indptr[sequence]), int(kv_indptr[sequence + 1])
        if start == end:
            continue
        pages = kv_indices[start:end].to(torch.int64)
        # [tokens, num_kv_heads, head_dim] -> [tokens, num_qo_heads, head_dim]
        keys = k_cache[pages, 0].to(torch.float32).repeat_interleave(group, dim=1)
        values = v_cache[pages, 0].to(torch.float32).repeat_interleave(group, dim=1)
        query = q[sequence].to(torch.float32)
        logits = torch.einsum("hd,thd->ht", query, keys) * sm_scale
        lse[sequence] = torch.logsumexp(logits, dim=-1) / math.log(2.0)
        weights = torch.softmax(logits, dim=-1)
        output[sequence] = torch.einsum("ht,thd->hd", weights, values).to(q.dtype)
    return output, lse

"""Right, but loops over sequences and over query heads in Python."""

import math

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
    output: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    group = q.shape[1] // k_cache.shape[2]
    bounds = kv_indptr.tolist()
    for sequence in range(q.shape[0]):
        pages = kv_indices[bounds[sequence] : bounds[sequence + 1]].long()
        for head in range(q.shape[1]):
            keys = k_cache[pages, 0, head // group].float()
            values = v_cache[pages, 0, head // group].float()
            logits = torch.mv(keys, q[sequence, head].float()) * sm_scale
            lse[sequence, head] = torch.logsumexp(logits, dim=0) * LOG2_E
            output[sequence, head] = torch.mv(values.t(), torch.softmax(logits, dim=0))

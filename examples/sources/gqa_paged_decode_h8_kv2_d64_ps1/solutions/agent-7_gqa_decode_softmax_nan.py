"""As a padded batch, but the softmax of an empty sequence is 0 / 0: NaN there, right elsewhere."""

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
) -> tuple[torch.Tensor, torch.Tensor]:
    batch_size, num_qo_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    lengths = kv_indptr[1:] - kv_indptr[:-1]
    longest = int(lengths.max())
    slots = torch.arange(longest, dtype=torch.int32, device=q.device)
    padding = (slots >= lengths[:, None])[:, None, None, :]
    where = (kv_indptr[:-1, None] + slots).clamp_(max=kv_indices.shape[0] - 1)
    pages = kv_indices[where].flatten()

    shape = (batch_size, longest, num_kv_heads, head_dim)
    keys = k_cache.flatten(1).index_select(0, pages).view(shape).float()
    values = v_cache.flatten(1).index_select(0, pages).view(shape).float()
    query = q.view(batch_size, num_kv_heads, -1, head_dim).float() * sm_scale
    logits = torch.matmul(query, keys.permute(0, 2, 3, 1)).masked_fill_(padding, -math.inf)
    total = torch.logsumexp(logits, dim=-1, keepdim=True)
    output = torch.matmul(torch.softmax(logits, dim=-1), values.transpose(1, 2))
    return output.view(q.shape).to(q.dtype), (total * LOG2_E).view(batch_size, num_qo_heads)

"""Prefill on the CPU: the kernels behind FlashInfer's wrappers for paged and for ragged keys.

Batch decode runs on the first as well where it uses tensor cores.
"""

import contextlib
import itertools
import math

import torch

CAUSAL, CUSTOM = 1, 2
"""``flashinfer.utils.MaskMode``."""

HND = 1
"""``flashinfer.utils.TensorLayout.HND``."""


class Info(list):
    """What a plan leaves: a schedule. The offsets in it are what the run must be given."""


def plan(
    float_workspace,
    int_workspace,
    pinned_workspace,
    qo_indptr,
    kv_indptr,
    kv_lens,
    total_rows,
    batch_size,
    *options,
):
    """Keep the offsets; they come from the host, as kernels want them."""
    assert all(each.device.type == "cpu" for each in (qo_indptr, kv_indptr, kv_lens))
    assert len(qo_indptr) == len(kv_indptr) == batch_size + 1
    return Info([qo_indptr.clone(), kv_indptr.clone(), kv_lens.clone()])


def attend(q, keys, values, out, lse, *, causal, sm_scale, soft_cap=0.0, window=-1):
    """Write the attention of one request into `out`, and the base-2 log of sums into `lse`.

    Parameters
    ----------
    q : tensor [rows, num_qo_heads, head_dim]
    keys, values : tensor [length, num_kv_heads, head_dim]
    out, lse : tensor, or None for the second
        Rows of the caller's buffers.
    """
    rows, length = q.shape[0], keys.shape[0]
    group = q.shape[1] // keys.shape[1]
    keys = keys.float().repeat_interleave(group, dim=1)
    values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->qhk", q.float(), keys) * sm_scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    last = torch.arange(rows)[:, None] + length - rows  # the last query is at the last key
    places = torch.arange(length)[None, :]
    hidden = torch.zeros(rows, length, dtype=torch.bool)
    if causal:
        hidden |= places > last
    if window >= 0:
        hidden |= places < last - window
    scores = scores.masked_fill(hidden[:, None, :], -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    out.copy_(torch.einsum("qhk,khd->qhd", weights, values))
    if lse is not None:
        lse.copy_(torch.logsumexp(scores, dim=-1) / math.log(2.0))


def gather(cache, pages, last_page_len, layout):
    """Return the rows of one request from a paged cache: [length, num_kv_heads, head_dim]."""
    picked = cache[pages.long()]
    if layout == HND:
        picked = picked.transpose(1, 2)
    unused = picked.shape[1] - last_page_len
    return picked.reshape(-1, *picked.shape[2:])[: max(0, len(pages) * picked.shape[1] - unused)]


def attend_each(plan_info, q, parts, qo_indptr, out, lse, mask_mode, window_left, options):
    """Write the attention of each request, whose keys and values are in `parts`.

    `options` are what the kernels take after the window.
    """
    assert isinstance(plan_info, Info)
    _pdl, _mask, _mask_indptr, _alibi, _prefix, _token_pos, _item, soft_cap, sm_scale, *_ = options
    rows = qo_indptr.tolist()
    assert rows == plan_info[0].tolist()
    for (begin, end), (keys, values) in zip(itertools.pairwise(rows), parts, strict=True):
        attend(
            q[begin:end],
            keys,
            values,
            out[begin:end],
            None if lse is None else lse[begin:end],
            causal=mask_mode == CAUSAL,
            sm_scale=sm_scale,
            soft_cap=soft_cap,
            window=window_left,
        )


def paged_run(
    float_workspace,
    int_workspace,
    plan_info,
    q,
    k_cache,
    v_cache,
    qo_indptr,
    kv_indptr,
    kv_indices,
    last_page_len,
    out,
    lse,
    mask_mode,
    layout,
    window_left,
    *options,
):
    """Attention on pages."""
    pages, last = kv_indptr.tolist(), last_page_len.tolist()
    taken = [kv_indices[begin:end] for begin, end in itertools.pairwise(pages)]
    parts = [
        [gather(cache, one, length, layout) for cache in (k_cache, v_cache)]
        for one, length in zip(taken, last, strict=True)
    ]
    attend_each(plan_info, q, parts, qo_indptr, out, lse, mask_mode, window_left, options)


def ragged_run(
    float_workspace,
    int_workspace,
    plan_info,
    q,
    k,
    v,
    qo_indptr,
    kv_indptr,
    out,
    lse,
    mask_mode,
    layout,
    window_left,
    *options,
):
    """Attention on keys that lie one request after the other."""
    if layout == HND:
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    parts = [(k[begin:end], v[begin:end]) for begin, end in itertools.pairwise(kv_indptr.tolist())]
    attend_each(plan_info, q, parts, qo_indptr, out, lse, mask_mode, window_left, options)


def install(patch):
    """Put these in the place of the compiled modules of prefill, for all backends."""
    kernels = patch.namespace("prefill", plan=plan, paged_run=paged_run, ragged_run=ragged_run)
    for name in ("flashinfer.prefill", "flashinfer.decode"):
        patch.set(patch.module(name), "get_batch_prefill_module", lambda *args: kernels)
    # Some plans make the device the current one.
    patch.set(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return kernels

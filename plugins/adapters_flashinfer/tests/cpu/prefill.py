"""Prefill on the CPU: the kernels behind FlashInfer's wrappers for paged and for ragged keys.

Batch decode runs on the first as well where it uses tensor cores. Windows, soft caps and biases of
scores are left out: calls with them are not compared.
"""

import contextlib
import itertools
import math

import torch

CAUSAL = 1
"""``flashinfer.utils.MaskMode.CAUSAL``."""

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


def attend(q, keys, values, out, lse, causal, sm_scale):
    """Write the attention of one request into `out`, and the base-2 log of sums into `lse`.

    `q` is [rows, num_qo_heads, head_dim]; keys and values are [length, num_kv_heads, head_dim].
    """
    rows, length = q.shape[0], keys.shape[0]
    group = q.shape[1] // keys.shape[1]
    keys = keys.float().repeat_interleave(group, dim=1)
    values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->qhk", q.float(), keys) * sm_scale
    if causal:  # the last query is at the last key
        hidden = torch.arange(length) > torch.arange(rows)[:, None] + length - rows
        scores = scores.masked_fill(hidden[:, None, :], -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    out.copy_(torch.einsum("qhk,khd->qhd", weights, values))
    if lse is not None:
        lse.copy_(torch.logsumexp(scores, dim=-1) / math.log(2.0))


def attend_each(q, parts, rows, out, lse, causal, sm_scale):
    """Write the attention of each request, whose keys and values are in `parts`."""
    for (begin, end), (keys, values) in zip(itertools.pairwise(rows), parts, strict=True):
        sums = None if lse is None else lse[begin:end]
        attend(q[begin:end], keys, values, out[begin:end], sums, causal, sm_scale)


def gather(caches, kv_indptr, kv_indices, last_page_len, layout):
    """Return keys and values of each request on pages: [length, num_kv_heads, head_dim]."""
    parts = []
    offsets = itertools.pairwise(kv_indptr.tolist())
    for (begin, end), last in zip(offsets, last_page_len.tolist(), strict=True):
        picked = [cache[kv_indices[begin:end].long()] for cache in caches]
        if layout == HND:
            picked = [pages.transpose(1, 2) for pages in picked]
        length = max(0, (end - begin - 1) * picked[0].shape[1] + last)
        parts.append([pages.flatten(0, 1)[:length] for pages in picked])
    return parts


def run(plan_info, q, parts, qo_indptr, out, lse, mask_mode, options):
    """Attend as planned. `options` are what the kernels take after the window."""
    assert isinstance(plan_info, Info)
    _pdl, _mask, _mask_indptr, _alibi, _prefix, _token_pos, _item, _cap, sm_scale, *_ = options
    rows = qo_indptr.tolist()
    assert rows == plan_info[0].tolist()
    attend_each(q, parts, rows, out, lse, mask_mode == CAUSAL, sm_scale)


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
    parts = gather((k_cache, v_cache), kv_indptr, kv_indices, last_page_len, layout)
    run(plan_info, q, parts, qo_indptr, out, lse, mask_mode, options)


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
    run(plan_info, q, parts, qo_indptr, out, lse, mask_mode, options)


def install(patch):
    """Put these in the place of the compiled modules of prefill, for all backends."""
    kernels = patch.namespace("prefill", plan=plan, paged_run=paged_run, ragged_run=ragged_run)
    for name in ("flashinfer.prefill", "flashinfer.decode"):
        patch.set(patch.module(name), "get_batch_prefill_module", lambda *args: kernels)
    # Some plans make the device the current one.
    patch.set(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return kernels

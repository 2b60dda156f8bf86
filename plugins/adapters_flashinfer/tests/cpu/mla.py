"""MLA on the CPU: the kernels behind ``flashinfer.mla.BatchMLAPagedAttentionWrapper``.

The arithmetic is that of multi-head latent attention with absorbed projections: scores from the
compressed keys and from the rotated ones, values that are the compressed keys again.
"""

import math

import torch

CAUSAL = 1
"""``flashinfer.utils.MaskMode.CAUSAL``."""


def plan(
    float_workspace,
    int_workspace,
    pinned_workspace,
    qo_indptr,
    kv_indptr,
    kv_lens,
    num_heads,
    head_dim_o,
    causal,
):
    """Keep what the kernel gets from its workspace: a schedule, which has these offsets in it."""
    assert all(each.device.type == "cpu" for each in (qo_indptr, kv_indptr, kv_lens))
    return [qo_indptr.clone(), kv_indptr.clone(), kv_lens.clone()]


def run(
    float_workspace,
    int_workspace,
    plan_info,
    q_nope,
    q_pe,
    ckv_cache,
    kpe_cache,
    kv_indices,
    out,
    lse,
    mask_mode,
    num_heads,
    page_size,
    sm_scale,
    lse_base_on_e,
    *scales_and_profiler,
):
    """Write attention into `out`, and the logarithm of the sum of exponentials into `lse`."""
    qo_indptr, kv_indptr, kv_lens = (each.tolist() for each in plan_info)
    for request, kv_len in enumerate(kv_lens):
        rows = slice(qo_indptr[request], qo_indptr[request + 1])
        pages = kv_indices[kv_indptr[request] : kv_indptr[request + 1]].long()
        keys = ckv_cache[pages].reshape(-1, ckv_cache.shape[-1])[:kv_len].float()
        rotated = kpe_cache[pages].reshape(-1, kpe_cache.shape[-1])[:kv_len].float()
        scores = q_nope[rows].float() @ keys.T + q_pe[rows].float() @ rotated.T
        values, sums = _attend(scores * sm_scale, keys, mask_mode == CAUSAL)
        out[rows] = values.to(out.dtype)
        if lse is not None:
            lse[rows] = sums if lse_base_on_e else sums / math.log(2.0)


def _attend(scores, values, causal):
    """Return the attention of scores[q, H, kv], and their sums; rows that see nothing give 0."""
    rows, _, length = scores.shape
    if causal:  # the last query sees everything
        hidden = torch.arange(length) > torch.arange(rows)[:, None] + length - rows
        scores = scores.masked_fill(hidden[:, None, :], -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return weights @ values, torch.logsumexp(scores, dim=-1)


def install(patch):
    """Put these in the place of the compiled module of MLA, wherever a release gets it from."""
    utils = patch.module("flashinfer.utils")
    kernels = patch.namespace("mla", plan=plan, run=run)
    patch.everywhere(utils.is_sm90a_supported, lambda device: True)
    found = False
    for name in ("flashinfer.mla", "flashinfer.mla._core", *_BACKENDS):
        module = patch.module(name)
        if module is not None and "get_batch_mla_module" in vars(module):
            patch.set(module, "get_batch_mla_module", lambda *args: kernels)
            found = True
    assert found, "this release has no get_batch_mla_module where it is known to be"


_BACKENDS = (
    "flashinfer.mla._batch_mla._backends.fa2_backend",
    "flashinfer.mla._batch_mla._backends.fa3_backend",
)

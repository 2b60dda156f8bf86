"""MLA on the CPU: the kernels behind ``flashinfer.mla.BatchMLAPagedAttentionWrapper``.

The arithmetic is that of multi-head latent attention with absorbed projections: scores from the
compressed keys and from the rotated ones, values that are the compressed keys again.
"""

import math

import torch

from cpu import prefill


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
    q = torch.cat([q_nope, q_pe], dim=-1)
    for request, kv_len in enumerate(kv_lens):
        rows = slice(qo_indptr[request], qo_indptr[request + 1])
        pages = kv_indices[kv_indptr[request] : kv_indptr[request + 1]].long()
        values, rotated = (each[pages].flatten(0, 1)[:kv_len] for each in (ckv_cache, kpe_cache))
        keys = torch.cat([values, rotated], dim=-1)[:, None]
        sums = None if lse is None else lse[rows]
        causal = mask_mode == prefill.CAUSAL
        prefill.attend(q[rows], keys, values[:, None], out[rows], sums, causal, sm_scale)
        if lse_base_on_e and sums is not None:
            sums *= math.log(2.0)


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

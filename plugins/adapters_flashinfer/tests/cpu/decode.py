"""Decode on the CPU: the kernels behind FlashInfer's wrapper for one query per request."""

from cpu import prefill


def plan(float_workspace, int_workspace, pinned_workspace, kv_indptr, batch_size, *options):
    """Keep the offsets; they come from the host, as kernels want them."""
    assert kv_indptr.device.type == "cpu"
    assert len(kv_indptr) == batch_size + 1
    return prefill.Info([kv_indptr.clone()])


def run(
    float_workspace,
    int_workspace,
    plan_info,
    q,
    k_cache,
    v_cache,
    kv_indptr,
    kv_indices,
    last_page_len,
    out,
    lse,
    layout,
    window_left,
    enable_pdl,
    alibi,
    soft_cap,
    sm_scale,
    *rope,
):
    """Attention of one query per request on pages."""
    assert isinstance(plan_info, prefill.Info)
    assert kv_indptr.tolist() == plan_info[0].tolist()
    parts = prefill.gather((k_cache, v_cache), kv_indptr, kv_indices, last_page_len, layout)
    prefill.attend_each(q, parts, range(len(kv_indptr)), out, lse, False, sm_scale)


def install(patch):
    """Put these in the place of the compiled modules of decode, with and without tensor cores."""
    kernels = patch.namespace("decode", plan=plan, run=run)
    patch.set(patch.module("flashinfer.decode"), "get_batch_decode_module", lambda *args: kernels)
    prefill.install(patch)

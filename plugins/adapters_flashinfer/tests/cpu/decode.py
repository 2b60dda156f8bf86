"""Decode on the CPU: the kernels behind FlashInfer's wrapper for one query per request."""

from cpu import prefill


class Info(list):
    """What a plan leaves: a schedule. The offsets in it are those at the time of the plan."""


def plan(float_workspace, int_workspace, pinned_workspace, kv_indptr, batch_size, *options):
    """Keep the offsets; they come from the host, as kernels want them."""
    assert kv_indptr.device.type == "cpu"
    assert len(kv_indptr) == batch_size + 1
    return Info([kv_indptr.clone()])


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
    assert isinstance(plan_info, Info)
    pages = kv_indptr.tolist()
    assert pages == plan_info[0].tolist()
    for i in range(len(pages) - 1):
        taken = kv_indices[pages[i] : pages[i + 1]]
        prefill.attend(
            q[i : i + 1],
            prefill.gather(k_cache, taken, int(last_page_len[i]), layout),
            prefill.gather(v_cache, taken, int(last_page_len[i]), layout),
            out[i : i + 1],
            None if lse is None else lse[i : i + 1],
            causal=False,
            sm_scale=sm_scale,
            soft_cap=soft_cap,
            window=window_left,
        )


def install(patch):
    """Put these in the place of the compiled modules of decode, with and without tensor cores."""
    kernels = patch.namespace("decode", plan=plan, run=run)
    patch.set(patch.module("flashinfer.decode"), "get_batch_decode_module", lambda *args: kernels)
    prefill.install(patch)

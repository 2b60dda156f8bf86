"""Solutions of all definitions that the engines have calls of, and these definitions.

Solutions are written from the definitions alone: they get tensors by name, and no wrapper.
"""

import json

import gqa
import making
import mla_calls
import torch
from cpu.norm import normalised
from making import SCALAR, define, tensor

GQA = "h4_kv2_d64"
MLA = mla_calls.name_of("decode")


def used(kv_indptr, kv_indices):
    """Cut buffers for CUDA graphs, which are longer than what is in use."""
    return kv_indices[: int(kv_indptr[-1])]


def rmsnorm(hidden_states, weight):
    return normalised(hidden_states, weight, 1e-6)


def fused_add_rmsnorm(hidden_states, residual, weight):
    total = hidden_states.float() + residual.float()
    return normalised(total, weight, 1e-6).to(hidden_states.dtype)


def decode(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, kv_last_page_len=None):
    pages = used(kv_indptr, kv_indices)
    return gqa.decode_reference(q, k_cache, v_cache, kv_indptr, pages, sm_scale, kv_last_page_len)


def prefill(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, kv_last_page_len=None):
    pages = used(kv_indptr, kv_indices)
    return gqa.prefill_reference(
        q, k_cache, v_cache, qo_indptr, kv_indptr, pages, sm_scale, kv_last_page_len
    )


def ragged(q, k, v, qo_indptr, kv_indptr, sm_scale):
    return gqa.ragged_reference(q, k, v, qo_indptr, kv_indptr, sm_scale)


def mla(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale):
    rows = zip(kv_indptr.tolist(), kv_indptr[1:].tolist(), strict=False)
    found = []
    for row, (begin, end) in enumerate(rows):
        pages = kv_indices[begin:end].long()
        keys, rotated = ckv_cache[pages, 0].float(), kpe_cache[pages, 0].float()
        scores = (q_nope[row].float() @ keys.T + q_pe[row].float() @ rotated.T) * sm_scale
        found.append((torch.softmax(scores, -1) @ keys, torch.logsumexp(scores, -1) / 0.6931472))
    out, lse = (torch.stack(each) for each in zip(*found, strict=True))
    return out.to(q_nope.dtype), lse


FUNCTIONS = {
    "rmsnorm_h64": rmsnorm,
    "fused_add_rmsnorm_h64": fused_add_rmsnorm,
    f"gqa_paged_decode_{GQA}_ps1": decode,
    f"gqa_paged_decode_{GQA}_ps16": decode,
    f"gqa_paged_prefill_causal_{GQA}_ps1": prefill,
    f"gqa_paged_prefill_causal_{GQA}_ps16": prefill,
    f"gqa_ragged_prefill_causal_{GQA}": ragged,
    MLA: mla,
}


def solutions(counts):
    """Return solutions that count their calls."""

    def counted(name, function):
        from functools import wraps

        @wraps(function)
        def solution(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return solution

    return {name: counted(name, function) for name, function in FUNCTIONS.items()}


# -------------------------------------------------------------------------------- definitions

_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64}


def definitions():
    """Return the definitions, as the public dataset has them, in sizes for tests."""
    found = [mla_calls.definition("decode")]
    for page_size in (1, 16):
        found += [_paged("decode", page_size), _paged("prefill_causal", page_size)]
    return [json.loads(found[0].model_dump_json()), *found[1:], _ragged(), *_norms()]


def write_dataset(root):
    """Write a dataset of the definitions alone."""
    making.dataset(root, *definitions())


def _paged(stage, page_size):
    rows = "batch_size" if stage == "decode" else "total_q"
    cache = tensor("num_pages", "page_size", "num_kv_heads", "head_dim")
    offsets = tensor("len_indptr", dtype="int32")
    inputs = {
        "q": tensor(rows, "num_qo_heads", "head_dim"),
        "k_cache": cache,
        "v_cache": cache,
        **({} if stage == "decode" else {"qo_indptr": offsets}),
        "kv_indptr": offsets,
        "kv_indices": tensor("num_kv_indices", dtype="int32"),
        **({} if page_size == 1 else {"kv_last_page_len": tensor("requests", dtype="int32")}),
        "sm_scale": SCALAR,
    }
    return define(
        f"gqa_paged_{stage}_{GQA}_ps{page_size}",
        "gqa_paged",
        {**_HEADS, "page_size": page_size},
        inputs,
        _attention(rows),
        constraints=["num_kv_indices == kv_indptr[-1].item()"],
    )


def _attention(rows):
    sums = tensor(rows, "num_qo_heads", dtype="float32")
    return {"output": tensor(rows, "num_qo_heads", "head_dim"), "lse": sums}


def _ragged():
    offsets = tensor("len_indptr", dtype="int32")
    inputs = {
        "q": tensor("total_q", "num_qo_heads", "head_dim"),
        "k": tensor("total_kv", "num_kv_heads", "head_dim"),
        "v": tensor("total_kv", "num_kv_heads", "head_dim"),
        "qo_indptr": offsets,
        "kv_indptr": offsets,
        "sm_scale": SCALAR,
    }
    name = f"gqa_ragged_prefill_causal_{GQA}"
    return define(name, "gqa_ragged", _HEADS, inputs, _attention("total_q"))


def _norms():
    rows, hidden = tensor("batch_size", "hidden_size"), {"hidden_size": 64}
    weight, out = tensor("hidden_size"), {"output": rows}
    plain = {"hidden_states": rows, "weight": weight}
    fused = {"hidden_states": rows, "residual": rows, "weight": weight}
    return [
        define("rmsnorm_h64", "rmsnorm", hidden, plain, out),
        define("fused_add_rmsnorm_h64", "rmsnorm", hidden, fused, out),
    ]

"""Solutions of all definitions that the engines have calls of, and these definitions.

Solutions are written from the definitions alone: they get tensors by name, and no wrapper.
"""

import functools

import gqa
import making
import mla_calls
from making import tensor

GQA = "h4_kv2_d64"
MLA = mla_calls.name_of("decode")


FUNCTIONS = {
    "rmsnorm_h64": making.reference_of(making.rmsnorm(64)),
    "fused_add_rmsnorm_h64": making.reference_of(making.fused(64)),
    f"gqa_paged_decode_{GQA}_ps1": gqa.decode_reference,
    f"gqa_paged_decode_{GQA}_ps16": gqa.decode_reference,
    f"gqa_paged_prefill_causal_{GQA}_ps1": gqa.prefill_reference,
    f"gqa_paged_prefill_causal_{GQA}_ps16": gqa.prefill_reference,
    f"gqa_ragged_prefill_causal_{GQA}": gqa.ragged_reference,
    MLA: mla_calls.reference,
}


def solutions(counts):
    """Return solutions that count their calls."""

    def counted(name, function):
        @functools.wraps(function)
        def solution(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return solution

    return {name: counted(name, function) for name, function in FUNCTIONS.items()}


# -------------------------------------------------------------------------------- definitions

_HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64}


def definitions():
    """Return the definitions, as the public dataset has them, in sizes for tests."""
    paged = [_paged(stage, size) for size in (1, 16) for stage in ("decode", "prefill_causal")]
    norms = making.rmsnorm(64), making.fused(64)
    return [mla_calls.definition("decode"), *paged, _ragged(), *norms]


def write_dataset(root):
    """Write a dataset of the definitions alone."""
    making.dataset(root, *definitions())


def _paged(stage, page_size):
    q = tensor("batch_size" if stage == "decode" else "total_q", "num_qo_heads", "head_dim")
    cache = tensor("num_pages", "page_size", "num_kv_heads", "head_dim")
    tensors = {"q": q, "k_cache": cache, "v_cache": cache}
    name = f"gqa_paged_{stage}_{GQA}_ps{page_size}"
    return making.attention(name, "gqa_paged", _HEADS, tensors, page_size)


def _ragged():
    rows = tensor("total_kv", "num_kv_heads", "head_dim")
    tensors = {"q": tensor("total_q", "num_qo_heads", "head_dim"), "k": rows, "v": rows}
    return making.attention(f"gqa_ragged_prefill_causal_{GQA}", "gqa_ragged", _HEADS, tensors)

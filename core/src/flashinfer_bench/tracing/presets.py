"""What is recorded of the kinds of computations that engines consist of.

Weights and activations become random inputs: their values do not matter for speed, and are large.
What says where sequences begin, and which pages they have, is written as it was: it decides how
much work there is. Calls of matrix products and norms are told apart by their sizes. Calls of
attention are told apart by the number of sequences and their average length: two decode steps in a
row differ in each length, but are the same work.

Definitions are recognised by the names of the dataset's format.
"""

from __future__ import annotations

from flashinfer_bench.tracing.config import TracingConfig, TracingConfigRegistry

AXES_ONLY = TracingConfig("dump_none", filter_policy="keep_first_by_axes")
"""One workload of each size, with random inputs."""

INTEGERS_BY_AXES = TracingConfig("dump_integers", filter_policy="keep_first_by_axes")
"""One workload of each size, with the indices that it came with."""

DUMP_ALL = TracingConfig("dump_all", filter_policy="keep_first_by_axes")
"""One workload of each size, with all inputs that it came with."""

GEMM = AXES_ONLY
RMSNORM = AXES_ONLY
MOE = INTEGERS_BY_AXES

DECODE = TracingConfig(
    "dump_int32",
    filter_policy="keep_first_by_avg_seq_len",
    filter_policy_kwargs={"k": 1, "by_batch": True, "indptr": "kv_indptr"},
)
"""One workload of each number of sequences and average length, with its index pointers."""

PREFILL = TracingConfig(
    "dump_int32",
    filter_policy="keep_first_by_avg_seq_len",
    filter_policy_kwargs={"k": 1, "by_batch": True, "indptr": ["qo_indptr", "kv_indptr"]},
)
"""As `DECODE`, with the average number of queries of a sequence."""

_ATTENTION = {
    "gqa_paged_decode*": DECODE,
    "gqa_paged_prefill*": PREFILL,
    "gqa_ragged_prefill*": PREFILL,
    "mla_paged_decode*": DECODE,
    "mla_paged_prefill*": PREFILL,
    "mla_ragged_prefill*": PREFILL,
}
_OTHERS = {
    "gemm_*": GEMM,
    "rmsnorm_*": RMSNORM,
    "fused_add_rmsnorm_*": RMSNORM,
    "*moe_*": MOE,
}


def get_attention_only_configs() -> TracingConfigRegistry:
    """Return settings for attention, and nothing else; a new registry, which may be changed."""
    return TracingConfigRegistry(None, _ATTENTION)


def get_full_configs() -> TracingConfigRegistry:
    """Return settings for all definitions; a new registry, which may be changed.

    What is none of the kinds that have a preset is told apart by sizes, and integers are written.
    """
    return TracingConfigRegistry(INTEGERS_BY_AXES, {**_ATTENTION, **_OTHERS})


def get_default_configs() -> TracingConfigRegistry:
    """Return the settings that hold where none are given: those of `get_full_configs`."""
    return get_full_configs()

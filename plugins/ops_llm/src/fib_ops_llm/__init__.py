"""Support for operators of language models: evaluators, key builders and tracing policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import (
    EvaluatorSpec,
    KeyBuilderSpec,
    OpFamilySpec,
    TracingPolicySpec,
    hookimpl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


# Default settings for some op types; settings of the user take precedence.
SETTINGS: dict[str, dict[str, Any]] = {
    # Routing to experts is discontinuous: rounding sends a few tokens to other experts.
    "moe": {"required_matched_ratio": 0.95},
    # Number of calls of a sampling kernel per input set, and the largest total-variation distance
    # between its frequencies and the requested distribution.
    "sampling": {"extra": {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}},
}


@hookimpl
def fib_register_op_families() -> Iterable[OpFamilySpec]:
    """Register the op types for which this plugin provides evaluators and keys."""
    yield OpFamilySpec(
        name="llm",
        op_types=("gemm", "gqa*", "mla*", "moe", "sampling", "dsa_*", "nsa_*"),
        settings="fib_ops_llm:SETTINGS",
        work="fib_ops_llm.work:work",
        summary="Products, attention, mixtures of experts and sampling of language models",
    )


@hookimpl
def fib_register_key_builders() -> Iterable[KeyBuilderSpec]:
    """Register key builders for the op types whose speed depends on known properties.

    They have fallback priority: a plugin's key builder takes precedence.
    """
    attention = "The variable axes of {}attention, and its integer and boolean scalars"
    for name, op_types, summary in (
        ("gemm", ("gemm",), "The variable axes of a matrix product"),
        ("gqa", ("gqa", "gqa_paged", "gqa_ragged"), attention.format("")),
        ("mla", ("mla", "mla_paged", "mla_ragged"), attention.format("latent ")),
    ):
        yield KeyBuilderSpec(
            name=name,
            op_types=op_types,
            factory=f"fib_ops_llm.key_builders:{name.upper()}KeyBuilder",
            priority=0,
            summary=summary,
        )


@hookimpl
def fib_register_tracing_policies() -> Iterable[TracingPolicySpec]:
    """Register the policies that record a few of very many calls."""
    yield TracingPolicySpec(
        name="keep_first_by_avg_seq_len",
        factory="fib_ops_llm.tracing_policies:KeepFirstByAvgSeqLen",
        summary="Keep the first of each average length",
    )
    yield TracingPolicySpec(
        name="keep_random_k",
        factory="fib_ops_llm.tracing_policies:KeepRandomK",
        summary="Keep k calls at random",
    )


@hookimpl
def fib_register_evaluators() -> Iterable[EvaluatorSpec]:
    """Register evaluators for definitions that element-wise comparison would judge wrongly.

    Their priorities are below the default, so that a plugin's evaluator takes precedence.
    """
    yield EvaluatorSpec(
        name="lowbit",
        op_types=("moe",),
        dtypes=("float8*", "float4*", "int8", "int4*"),
        factory="fib_ops_llm.lowbit:LowBitEvaluator",
        priority=30,
        summary="Also bounds the errors of elements that need not match",
    )
    yield EvaluatorSpec(
        name="sampling",
        op_types=("sampling",),
        inputs=("*probs*", "*logits*"),
        outputs=("samples*",),
        factory="fib_ops_llm.sampling:SamplingEvaluator",
        priority=40,
        summary="Compares samples of many calls with the requested distribution",
    )
    sparse = ("dsa_*", "nsa_*")
    yield EvaluatorSpec(
        name="dsa_sparse_attention",
        op_types=sparse,
        inputs=("sparse_indices",),
        factory="fib_ops_llm.dsa_sparse_attention:DsaSparseAttentionEvaluator",
        priority=40,
        summary="Compares every output, and detects omitted tokens",
    )
    yield EvaluatorSpec(
        name="dsa_topk_indexer",
        op_types=sparse,
        outputs=("topk_indices",),
        factory="fib_ops_llm.dsa_topk_indexer:DsaTopkIndexerEvaluator",
        priority=40,
        summary="Checks the scores of the selected tokens, in any order",
    )

"""What is known of language models' operators: how outputs are judged and calls told apart."""

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


# Settings that some op types need, below whatever a user sets.
SETTINGS: dict[str, dict[str, Any]] = {
    # Routing to experts is discontinuous: rounding sends a few tokens another way.
    "moe": {"required_matched_ratio": 0.95},
    # Times that a sampling kernel is called on each input set, and the largest total-variation
    # distance between its frequencies and the distribution asked for.
    "sampling": {"extra": {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}},
}


@hookimpl
def fib_register_op_families() -> Iterable[OpFamilySpec]:
    """Register the op types of which this plugin knows how they are judged and keyed."""
    yield OpFamilySpec(
        name="llm",
        op_types=("gemm", "gqa*", "mla*", "moe", "sampling", "dsa_*", "nsa_*"),
        settings="fib_ops_llm:SETTINGS",
        work="fib_ops_llm.work:work",
        summary="Products, attention, mixtures of experts and sampling of language models",
    )


@hookimpl
def fib_register_key_builders() -> Iterable[KeyBuilderSpec]:
    """Register keys for the op types whose speed is known to follow from the same things.

    Their priority is that of fallbacks: a plugin's key builder goes before them.
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
    """Register the policies by which few of very many calls are recorded."""
    for name, factory, summary in (
        (
            "keep_first_by_avg_seq_len",
            "KeepFirstByAvgSeqLen",
            "Keep the first of each average length",
        ),
        ("keep_random_k", "KeepRandomK", "Keep k calls at random"),
    ):
        yield TracingPolicySpec(
            name=name, factory=f"fib_ops_llm.tracing_policies:{factory}", summary=summary
        )


@hookimpl
def fib_register_evaluators() -> Iterable[EvaluatorSpec]:
    """Register evaluators for definitions that element-wise comparison judges wrongly.

    Their priorities are below the usual one, so that a plugin's evaluator goes before them.
    """
    yield EvaluatorSpec(
        name="lowbit",
        op_types=("moe",),
        dtypes=("float8*", "float4*", "int8", "int4*"),
        factory="fib_ops_llm.lowbit:LowBitEvaluator",
        priority=30,
        summary="Bounds the errors of elements that need not match, too",
    )
    yield EvaluatorSpec(
        name="sampling",
        op_types=("sampling",),
        inputs=("*probs*", "*logits*"),
        outputs=("samples*",),
        factory="fib_ops_llm.sampling:SamplingEvaluator",
        priority=40,
        summary="Holds samples of many calls against the distribution asked for",
    )
    sparse = ("dsa_*", "nsa_*")
    yield EvaluatorSpec(
        name="dsa_sparse_attention",
        op_types=sparse,
        inputs=("sparse_indices",),
        factory="fib_ops_llm.dsa_sparse_attention:DsaSparseAttentionEvaluator",
        priority=40,
        summary="Compares every output, and finds tokens that attention leaves out",
    )
    yield EvaluatorSpec(
        name="dsa_topk_indexer",
        op_types=sparse,
        outputs=("topk_indices",),
        factory="fib_ops_llm.dsa_topk_indexer:DsaTopkIndexerEvaluator",
        priority=40,
        summary="Checks by their scores that the right tokens are selected, in any order",
    )

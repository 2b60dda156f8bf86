"""Sets of rules, under the name of their old module."""

from __future__ import annotations

from flashinfer_bench.tracing.rule_presets import (
    fib_attn_tracing,
    fib_full_tracing,
    gemm_rule,
    gqa_paged_decode_rule,
    gqa_paged_prefill_rule,
    gqa_ragged_prefill_rule,
    mla_paged_decode_rule,
    mla_paged_prefill_rule,
    mla_ragged_prefill_rule,
)

__all__ = [
    "fib_attn_tracing",
    "fib_full_tracing",
    "gemm_rule",
    "gqa_paged_decode_rule",
    "gqa_paged_prefill_rule",
    "gqa_ragged_prefill_rule",
    "mla_paged_decode_rule",
    "mla_paged_prefill_rule",
    "mla_ragged_prefill_rule",
]

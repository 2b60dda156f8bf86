"""Policies, dumps and rules of the older interface; see `flashinfer_bench.tracing.rules`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tracing.policies import (
    KeepAll,
    KeepFirstByAvgSeqLen,
    KeepFirstK,
    KeepFirstKByAxes,
    KeepRandomK,
)
from flashinfer_bench.tracing.policies.base import positive
from flashinfer_bench.tracing.rules import TraceEntry, TracingRule

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from flashinfer_bench.tracing.policies import FilterPolicy
    from flashinfer_bench.tracing.rules import DedupPolicy


def _policy(decide: DedupPolicy, online: Callable[[], FilterPolicy]) -> DedupPolicy:
    """Return a policy that also says by which policy of today it can be done."""

    def policy(entries: list[TraceEntry]) -> list[TraceEntry]:
        return decide(entries)

    policy.online = online  # type: ignore[attr-defined]
    return policy


def policy_keep_all() -> DedupPolicy:
    """Keep all entries."""
    return _policy(list, KeepAll)


def policy_keep_first_k(k: int) -> DedupPolicy:
    """Keep the first `k` entries.

    Raises
    ------
    ConfigError
        If `k` is not a whole number from 1 on.
    """
    positive("k", k)
    return _policy(lambda entries: _in_order(entries)[:k], lambda: KeepFirstK(k))


def policy_keep_random_k(k: int, seed: Optional[int] = None) -> DedupPolicy:
    """Keep `k` entries at random.

    Raises
    ------
    ConfigError
        If `k` is not a whole number from 1 on.
    """
    positive("k", k)

    def decide(entries: list[TraceEntry]) -> list[TraceEntry]:
        return _in_order(random.Random(seed).sample(entries, min(k, len(entries))))

    return _policy(decide, lambda: KeepRandomK(k, seed))


def policy_dedup_by_axes(k: int = 1) -> DedupPolicy:
    """Keep the first `k` entries of the same axes.

    Raises
    ------
    ConfigError
        If `k` is not a whole number from 1 on.
    """
    positive("k", k)
    return _policy(lambda entries: _first(entries, KEY_AXES, k), lambda: KeepFirstKByAxes(k))


def policy_dedup_by_avg_seq_len(k: int = 1) -> DedupPolicy:
    """Keep the first `k` entries of each rounded average length of the sequences.

    From the last element of `kv_indptr`, or `seq_indptr`, over the number of sequences; entries
    without either are all as good as each other.

    Raises
    ------
    ConfigError
        If `k` is not a whole number from 1 on.
    """
    positive("k", k)
    return _policy(lambda entries: _first(entries, _average, k), lambda: KeepFirstByAvgSeqLen(k))


def _in_order(entries: list[TraceEntry]) -> list[TraceEntry]:
    return sorted(entries, key=lambda entry: entry.order)


def _first(
    entries: list[TraceEntry], key_of: Callable[[TraceEntry], Hashable], k: int
) -> list[TraceEntry]:
    counts: dict[Hashable, int] = {}
    kept = []
    for entry in _in_order(entries):
        key = key_of(entry)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= k:
            kept.append(entry)
    return kept


def _average(entry: TraceEntry) -> Optional[int]:
    for name in ("kv_indptr", "seq_indptr"):
        indptr = entry.picked.get(name)
        if indptr is not None and indptr.dim() == 1 and len(indptr) >= 2:
            return round(indptr[-1].item() / (len(indptr) - 1))
    return None


def KEY_AXES(entry: TraceEntry) -> Hashable:  # the name that programs import
    """Return what entries of the same axes have in common."""
    return tuple(sorted(entry.axes.items()))


def dump_all() -> Callable[[Mapping[str, Any]], list[str]]:
    """Dump all tensors."""
    return lambda inputs: [name for name, value in inputs.items() if hasattr(value, "dtype")]


def dump_int32() -> Callable[[Mapping[str, Any]], list[str]]:
    """Dump tensors of int32 alone: index pointers, mostly."""

    def pick(inputs: Mapping[str, Any]) -> list[str]:
        import torch

        return [name for name, each in inputs.items() if getattr(each, "dtype", 0) == torch.int32]

    return pick


KEEP_ALL = policy_keep_all()
KEEP_RANDOM_ONE = policy_keep_random_k(1)
DEDUP_BY_AXES = policy_dedup_by_axes()
DEDUP_BY_AVG_SEQ_LEN = policy_dedup_by_avg_seq_len()

DUMP_ALL = dump_all()
DUMP_NONE: list[str] = []
DUMP_INT32 = dump_int32()

gemm_rule = TracingRule(DUMP_NONE, DEDUP_BY_AXES)
axes_only_rule = TracingRule(DUMP_NONE, DEDUP_BY_AXES)
all_dump_rule = TracingRule(DUMP_ALL, KEEP_ALL)
gqa_paged_decode_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)
gqa_paged_prefill_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)
gqa_ragged_prefill_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)
mla_paged_decode_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)
mla_paged_prefill_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)
mla_ragged_prefill_rule = TracingRule(DUMP_INT32, DEDUP_BY_AVG_SEQ_LEN)

fib_attn_tracing = {
    "gqa_paged_decode*": gqa_paged_decode_rule,
    "gqa_paged_prefill*": gqa_paged_prefill_rule,
    "gqa_ragged_prefill*": gqa_ragged_prefill_rule,
    "mla_paged_decode*": mla_paged_decode_rule,
    "mla_paged_prefill*": mla_paged_prefill_rule,
    "mla_ragged_prefill*": mla_ragged_prefill_rule,
}
"""Rules for attention, by patterns of names."""

fib_full_tracing = {**fib_attn_tracing, "gemm_*": gemm_rule, "*": axes_only_rule}
"""Rules for all definitions, by patterns of names."""

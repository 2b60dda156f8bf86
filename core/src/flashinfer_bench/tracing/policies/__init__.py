"""Which calls become workloads: the policies that are built in, and what own ones are made of."""

from __future__ import annotations

from flashinfer_bench.tracing.policies.base import FastPath, FilterPolicy, OnlinePolicy
from flashinfer_bench.tracing.policies.counting import KeepAll, KeepFirstK, KeepNone
from flashinfer_bench.tracing.policies.keyed import KeepFirstKByAxes, KeyedPolicy
from flashinfer_bench.tracing.policies.sampling import KeepRandomK
from flashinfer_bench.tracing.policies.seq_len import KeepFirstByAvgSeqLen

__all__ = [
    "FastPath",
    "FilterPolicy",
    "KeepAll",
    "KeepFirstByAvgSeqLen",
    "KeepFirstK",
    "KeepFirstKByAxes",
    "KeepNone",
    "KeepRandomK",
    "KeyedPolicy",
    "OnlinePolicy",
]

"""Old module of the older interface; see `flashinfer_bench.tracer`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_ops_llm.tracing_rules", "fib-ops-llm")

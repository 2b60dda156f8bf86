"""Old name of `flashinfer_bench.tracing`, with the interface that it had.

Its names were in several modules; each of these has all of them.
"""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_ops_llm.tracing_rules", "fib-ops-llm")

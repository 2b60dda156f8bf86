"""Rules and entries, under the name of their old module."""

from __future__ import annotations

from flashinfer_bench.tracing.rules import TraceEntry, TracingRule

__all__ = ["TraceEntry", "TracingRule"]

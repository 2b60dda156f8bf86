"""The old place of `TraceSet`, which is now in `flashinfer_bench.data.trace_set`."""

from __future__ import annotations

from flashinfer_bench.data.trace_set import TraceSet

__all__ = ["TraceSet"]

"""The tracer, under the name of its old module."""

from __future__ import annotations

from typing import Optional

from flashinfer_bench.tracing.api import disable_tracing, enable_tracing
from flashinfer_bench.tracing.rules import TraceEntry, Tracer, TracingRule
from flashinfer_bench.tracing.runtime import TracingRuntime

__all__ = [
    "TraceEntry",
    "Tracer",
    "TracingRule",
    "disable_tracing",
    "enable_tracing",
    "get_tracer",
]


def get_tracer() -> Optional[TracingRuntime]:
    """Return what records now, or None."""
    return TracingRuntime.get_instance()

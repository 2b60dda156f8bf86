"""Old name of `flashinfer_bench.tracing`, with the interface that it had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.tracing.api import disable_tracing, enable_tracing

if TYPE_CHECKING:
    from flashinfer_bench.tracer.hook_impl import make_tracing_hook as make_tracing_hook
    from flashinfer_bench.tracer.tracer import get_tracer as get_tracer
    from flashinfer_bench.tracing.rules import TraceEntry as TraceEntry
    from flashinfer_bench.tracing.rules import Tracer as Tracer
    from flashinfer_bench.tracing.rules import TracingRule as TracingRule

_MODULES = {
    "TraceEntry": "flashinfer_bench.tracing.rules",
    "Tracer": "flashinfer_bench.tracing.rules",
    "TracingRule": "flashinfer_bench.tracing.rules",
    "get_tracer": "flashinfer_bench.tracer.tracer",
    "make_tracing_hook": "flashinfer_bench.tracer.hook_impl",
}

__all__ = ["disable_tracing", "enable_tracing", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value

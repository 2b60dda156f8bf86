"""The hook of the older interface, by which `apply` told a tracer of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.tracing.runtime import TracingRuntime

__all__ = ["make_tracing_hook"]


def make_tracing_hook(tracer: TracingRuntime) -> Callable[[str, Mapping[str, Any]], None]:
    """Return a function of definition and inputs by name that has `tracer` record the call.

    A tracer that has been started is told of calls without it.
    """

    def hook(def_name: str, runtime_kwargs: Mapping[str, Any]) -> None:
        tracer.collect(def_name, runtime_kwargs)

    return hook

"""FlashInfer-Bench plugin: routes the calls of FlashInfer's APIs through apply and tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.plugins import AdapterSpec


@hookimpl
def fib_register_adapters() -> Iterable[AdapterSpec]:
    """Register the adapters."""
    return ()

"""FlashInfer's functions by the names of the first release; see `fib_adapters_flashinfer`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(
    __name__, "fib_adapters_flashinfer.first_release", "fib-adapters-flashinfer"
)

"""What wrappers are often in need of; see `fib_adapters_flashinfer.helpers`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_adapters_flashinfer.helpers", "fib-adapters-flashinfer")

"""Results, rankings and pages made from recorded traces: see `fib_report`, which provides them."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_report")

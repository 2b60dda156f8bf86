"""Why which solution is taken, which the distribution ``fib-report`` explains."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_report.apply_choices", "fib-report")

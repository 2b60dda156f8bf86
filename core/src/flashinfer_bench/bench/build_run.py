"""Building and evaluating nothing, which the distribution ``fib-datasets`` provides."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.build", "fib-datasets")

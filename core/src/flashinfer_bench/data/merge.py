"""Merging datasets: `fib_datasets.transfer.merge`, of the distribution ``fib-datasets``."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.transfer.merge", "fib-datasets")

"""Checking a dataset: `fib_datasets.validate`, of the distribution ``fib-datasets``."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.validate", "fib-datasets")

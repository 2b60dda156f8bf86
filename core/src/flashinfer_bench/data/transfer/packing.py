"""Solutions as folders: `fib_datasets.transfer.packing`, of the distribution ``fib-datasets``."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.transfer.packing", "fib-datasets")

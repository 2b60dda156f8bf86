"""What checks are shown, and what they say: `fib_datasets.validate.findings`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.validate.findings", "fib-datasets")

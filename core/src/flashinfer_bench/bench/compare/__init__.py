"""Comparing two solutions: `fib_compare.paired`, of the distribution ``fib-compare``."""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_compare.paired", "fib-compare")

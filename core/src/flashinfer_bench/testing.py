"""The conformance kit, which the distribution ``fib-testing`` provides: see `fib_testing`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_testing")

"""Old place of the keys, and of the key builders that ``fib-ops-llm`` provides."""

from __future__ import annotations

from flashinfer_bench._lazy import moved
from flashinfer_bench.apply.keys import (
    ApplyKey,
    ApplyKeyBuilder,
    ApplyKeyFactory,
    AxesOnlyKeyBuilder,
)

__all__ = ["ApplyKey", "ApplyKeyBuilder", "ApplyKeyFactory", "AxesOnlyKeyBuilder"]

__getattr__, __dir__ = moved(__name__, "fib_ops_llm.key_builders", "fib-ops-llm")

"""Putting the best solution to work in place of a call: so far, the keys by which it is found.

The author of a plugin subclasses `ApplyKeyBuilder`, or `AxesOnlyKeyBuilder`, and registers the
class by a `flashinfer_bench.plugins.KeyBuilderSpec`.
"""

from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyBuilder, AxesOnlyKeyBuilder

__all__ = ["ApplyKey", "ApplyKeyBuilder", "AxesOnlyKeyBuilder"]

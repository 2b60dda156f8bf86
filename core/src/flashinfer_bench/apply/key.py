"""Old place of the keys and of those who build them."""

from flashinfer_bench.apply.key_builders import GEMMKeyBuilder, GQAKeyBuilder, MLAKeyBuilder
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyBuilder, AxesOnlyKeyBuilder

__all__ = [
    "ApplyKey",
    "ApplyKeyBuilder",
    "ApplyKeyFactory",
    "AxesOnlyKeyBuilder",
    "GEMMKeyBuilder",
    "GQAKeyBuilder",
    "MLAKeyBuilder",
]

"""Building and evaluating nothing, which the distribution ``fib-datasets`` provides."""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_datasets.build", "fib-datasets")

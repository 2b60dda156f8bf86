"""Routes, which the distribution ``fib-adapters-flashinfer`` provides: `fib_adapters_flashinfer`.

An adapter whose calls are calls of definitions is made of them.
"""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_adapters_flashinfer.routes", "fib-adapters-flashinfer")

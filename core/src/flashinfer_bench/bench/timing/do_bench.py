"""The timer ``do_bench``, which the distribution ``fib-timing-cuda`` provides."""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_timing_cuda.do_bench", "fib-timing-cuda")

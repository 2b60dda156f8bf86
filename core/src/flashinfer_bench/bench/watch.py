"""Watching the machine, which the distribution ``fib-judge`` provides: see `fib_judge.watch`."""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_judge.watch", "fib-judge")

"""Old place of the hook of the first release, which the distribution ``fib-ops-llm`` provides."""

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_ops_llm.apply_hook", "fib-ops-llm")

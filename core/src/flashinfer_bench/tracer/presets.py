"""Old module of the older interface; see `flashinfer_bench.tracer`."""

from flashinfer_bench.tracer import *  # noqa: F403

"""The old path of `flashinfer_bench.bench.stopping`."""

from flashinfer_bench.bench.stopping import *  # noqa: F403

"""The old place of the runners, which are now in `flashinfer_bench.bench.session`."""

from flashinfer_bench.bench.session import IsolatedRunner, PersistentRunner, Runner

__all__ = ["IsolatedRunner", "PersistentRunner", "Runner"]

"""Old name of `flashinfer_bench.tracing`, with the interface that it had.

Its names were in several modules; each of these has all of them.
"""

from __future__ import annotations

from flashinfer_bench.tracing.api import disable_tracing as disable_tracing
from flashinfer_bench.tracing.api import enable_tracing as enable_tracing
from flashinfer_bench.tracing.rules import *  # noqa: F403

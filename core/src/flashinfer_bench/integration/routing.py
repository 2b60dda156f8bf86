"""Old name of `flashinfer_bench.routing.routes`."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "flashinfer_bench.routing.routes")

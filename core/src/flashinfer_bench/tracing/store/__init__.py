"""Writing recorded workloads into a dataset."""

from __future__ import annotations

from flashinfer_bench.tracing.store.records import Entry
from flashinfer_bench.tracing.store.store import Added, LostEntriesError, Store

__all__ = ["Added", "Entry", "LostEntriesError", "Store"]

"""Watching the machine while something is timed: clocks, throttling, load.

`EnvironmentWatch` goes around a timing, `keep` says which samples count, and `locked_clocks` holds
a GPU's clocks for as long as a ``with`` statement lasts.
"""

from __future__ import annotations

from flashinfer_bench.bench.watch.base import Reading, Summary, Watcher
from flashinfer_bench.bench.watch.environment import EnvironmentWatch, watchers_for
from flashinfer_bench.bench.watch.lock import ClockRequest, LockReport, locked_clocks
from flashinfer_bench.bench.watch.recovery import Recovery
from flashinfer_bench.bench.watch.report import Kept, WatchReport, keep

__all__ = [
    "ClockRequest",
    "EnvironmentWatch",
    "Kept",
    "LockReport",
    "Reading",
    "Recovery",
    "Summary",
    "WatchReport",
    "Watcher",
    "keep",
    "locked_clocks",
    "watchers_for",
]

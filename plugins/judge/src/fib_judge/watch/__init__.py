"""Watching the machine while something is timed: clocks, throttling, load.

`EnvironmentWatch` goes around a timing, `keep` says which samples count, and `locked_clocks` holds
a GPU's clocks for as long as a ``with`` statement lasts. `restore_clocks` frees what a killed run
has left.
"""

from __future__ import annotations

from fib_judge.watch.base import Reading, Summary, Watcher
from fib_judge.watch.environment import EnvironmentWatch, Recovery, watchers_for
from fib_judge.watch.lock import ClockRequest, LockReport, locked_clocks, restore_clocks
from fib_judge.watch.report import Kept, WatchReport, keep

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
    "restore_clocks",
    "watchers_for",
]

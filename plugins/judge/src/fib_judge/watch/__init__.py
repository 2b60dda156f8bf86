"""Watching the machine while something is timed: clocks, throttling, load.

`EnvironmentWatch` goes around a timing, `keep` says which samples count, and `locked_clocks` holds
a GPU's clocks for as long as a ``with`` statement lasts. `restore_clocks` frees what a killed run
has left.
"""

from __future__ import annotations

from fib_judge.watch.base import Reading, Summary, Watcher
from fib_judge.watch.environment import (
    EnvironmentWatch,
    Recovery,
    WatchReport,
    keep,
    watchers_for,
)
from fib_judge.watch.lock import ClockRequest, LockReport, locked_clocks, restore_clocks

__all__ = [
    "ClockRequest",
    "EnvironmentWatch",
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

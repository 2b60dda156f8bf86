"""How much is held in memory by all recorders of a runtime, and their lock."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.tracing.config import TracingLimits
    from flashinfer_bench.tracing.entry import WorkloadEntry


class Buffer:
    """Counts entries and bytes that wait to be written.

    Parameters
    ----------
    limits : TracingLimits
        How much there may be.
    overflow : callable
        Called, without the lock, after a limit has been passed; writes what there is.

    Attributes
    ----------
    lock : threading.RLock
        Of all recorders. Held while a call is recorded, not while anything is written.
    busy : bool
        Whether a call is being recorded; read and written under the lock.
    entries, nbytes : int
        What is held.
    deferred : list of WorkloadEntry
        Those of CUDA graphs.
    """

    def __init__(self, limits: TracingLimits, overflow: Callable[[], None]) -> None:
        self.limits = limits
        self._overflow = overflow
        self._orders = count()
        self.clear()

    def clear(self) -> None:
        """Begin anew; also with a lock that nobody holds."""
        self.lock = threading.RLock()
        self.busy = False
        self.emptied()

    def emptied(self) -> None:
        """Note that all recorders have been drained."""
        self.entries = 0
        self.nbytes = 0
        self.deferred: list[WorkloadEntry] = []

    def next_order(self) -> int:
        """Return the number of the next entry."""
        return next(self._orders)

    def took(self, entry: WorkloadEntry, displaced: Optional[WorkloadEntry] = None) -> None:
        """Note that an entry is held now, perhaps in the place of another."""
        self.entries += 1
        self.nbytes += entry.nbytes()
        if entry.is_deferred:
            self.deferred.append(entry)
        if displaced is not None:
            self.entries -= 1
            self.nbytes -= displaced.nbytes()

    def relieve(self) -> None:
        """Have everything written if it is too much."""
        if self.entries >= self.limits.max_entries or self.nbytes >= self.limits.max_bytes:
            self._overflow()

"""What became of the calls of one API."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from flashinfer_bench.apply.dispatch import Dispatcher


class Tally:
    """What became of the calls of one API, over all definitions.

    Attributes
    ----------
    hits : int
        Calls that a solution answered. Added to without a lock: nothing can come between reading
        and writing it.
    names : set of str
        The definitions of which there was a call.
    unknown : set of str
        Other definitions of which there was one; not all of them, if there are many.
    """

    def __init__(self) -> None:
        self.hits = 0
        self.names: set[str] = set()
        self.unknown: set[str] = set()
        self._fallbacks = 0
        self._errors = 0
        self._misses: dict[str, int] = {}
        self._dispatchers: list[Dispatcher] = []
        self._lock = threading.Lock()

    def fallback(self, reason: Optional[str] = None) -> None:
        """Count a call that goes to the original; the dispatcher may have counted the reason."""
        with self._lock:
            self._fallbacks += 1
            if reason is not None:
                self._misses[reason] = self._misses.get(reason, 0) + 1

    def error(self) -> None:
        """Count a call that raises."""
        with self._lock:
            self._errors += 1

    def include(self, dispatcher: Dispatcher) -> None:
        """Count the misses of a dispatcher as well."""
        with self._lock:
            self._dispatchers.append(dispatcher)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as they are now."""
        with self._lock:
            misses = dict(self._misses)
            for dispatcher in self._dispatchers:
                for reason, count in dispatcher.stats.misses.items():
                    misses[reason] = misses.get(reason, 0) + count
            counts = {"hit": self.hits, "fallback": self._fallbacks, "error": self._errors}
            return {**counts, "misses": misses}

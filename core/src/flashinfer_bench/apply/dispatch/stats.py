"""What became of the calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

NO_CHOICE = "no choice"  # nobody has recorded such a size, or nothing eligible
TYPE = "type"  # no tensor, a subclass of one, or a scalar of another type
DTYPE = "dtype"
DEVICE = "device"  # other hardware than the table's, or several devices
SHAPE = "shape"  # rank, a constant axis, or inputs that disagree on an axis
LAYOUT = "layout"  # not contiguous
GRAD = "grad"  # a gradient is wanted, which substitutes have none of
MODE = "mode"  # autocast, a mode of torch, or a tensor that is not just numbers in memory
OVERLAP = "overlap"  # an output shares memory with an input or with another output
KEY = "key"  # the key builder failed
BUILD = "build"  # the solution could not be built
CAPTURE = "capture"  # seen for the first time while a CUDA graph is captured
OUT = "taken out"  # the solution has failed too often, or computed something else
OUTPUTS = "outputs"  # outputs cannot be allocated for a destination-passing solution
SHADOW = "not comparable"  # what a comparison with the original needs cannot be had
REENTRANT = "reentrant"  # the solution itself makes such a call


@dataclass(frozen=True)
class Stats:
    """How often what happened.

    Parameters
    ----------
    hits : int
        Calls that a solution answered.
    fallbacks : int
        Calls that the original answered: misses, failed solutions and shadow checks.
    errors : int
        Calls in which a solution raised, or returned something that is no output of the definition,
        or was found by a shadow check to compute something else.
    misses : dict of str to int
        Calls that no solution was tried for, by reason; one of those above.
    """

    hits: int = 0
    fallbacks: int = 0
    errors: int = 0
    misses: dict[str, int] = field(default_factory=dict)


class Counters:
    """Counts that several threads add to.

    `hits` and `unknown` are added to without a lock: under the global interpreter lock nothing can
    come between reading and writing of ``counters.hits += 1``.

    Attributes
    ----------
    hits : int
        Calls that a solution answered.
    unknown : int
        Calls of sizes that there is no solution for and that the original answered.
    """

    __slots__ = ("_errors", "_fallbacks", "_lock", "_misses", "hits", "unknown")

    def __init__(self) -> None:
        self.hits = 0
        self.unknown = 0
        self._fallbacks = 0
        self._errors = 0
        self._misses: dict[str, int] = {}
        self._lock = threading.Lock()

    def miss(self, reason: str) -> None:
        """Count a call that no solution was tried for."""
        with self._lock:
            self._misses[reason] = self._misses.get(reason, 0) + 1

    def fallback(self) -> None:
        """Count a call that the original answers."""
        with self._lock:
            self._fallbacks += 1

    def error(self) -> None:
        """Count a failure of a solution."""
        with self._lock:
            self._errors += 1

    def error_after_all(self) -> None:
        """Count what was counted as a hit as a failure of the solution."""
        with self._lock:
            self.hits -= 1
            self._errors += 1

    def miss_after_all(self, reason: str) -> None:
        """Count what was counted as a hit as a call that the original answers."""
        self.miss(reason)
        with self._lock:
            self.hits -= 1
            self._fallbacks += 1

    def snapshot(self) -> Stats:
        """Return the counts as they are now."""
        with self._lock:
            misses, unknown = dict(self._misses), self.unknown
            if unknown:
                misses[NO_CHOICE] = misses.get(NO_CHOICE, 0) + unknown
            return Stats(self.hits, self._fallbacks + unknown, self._errors, misses)

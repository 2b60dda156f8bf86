"""Counters of what happened to the calls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

NO_CHOICE = "no choice"  # the size was not recorded, or no eligible solution was
TYPE = "type"  # not a tensor, a tensor subclass, or a scalar of the wrong type
DTYPE = "dtype"
DEVICE = "device"  # hardware other than the table's, or several devices
SHAPE = "shape"  # rank, a constant axis, or inputs that disagree on an axis
LAYOUT = "layout"  # not contiguous
GRAD = "grad"  # a gradient is required, which substitutes do not provide
MODE = "mode"  # autocast, a mode of torch, or a tensor that is not plain data in memory
OVERLAP = "overlap"  # an output shares memory with an input or with another output
KEY = "key"  # the key builder failed
BUILD = "build"  # the solution could not be built
CAPTURE = "capture"  # seen for the first time while a CUDA graph is captured
OUT = "taken out"  # the solution failed too often, or its results differed
OUTPUTS = "outputs"  # outputs cannot be allocated for a destination-passing solution
SHADOW = "not comparable"  # a comparison with the original is not possible
REENTRANT = "reentrant"  # the call comes from the solution itself


@dataclass(frozen=True)
class Stats:
    """Number of calls, by outcome.

    Parameters
    ----------
    hits : int
        Calls answered by a solution.
    fallbacks : int
        Calls answered by the original: misses, failed solutions and shadow checks.
    errors : int
        Calls in which a solution raised, returned something that is not a valid output of the
        definition, or failed a shadow check.
    misses : dict of str to int
        Calls for which no solution was tried, by reason; the reasons are listed above.
    """

    hits: int = 0
    fallbacks: int = 0
    errors: int = 0
    misses: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """Counters that several threads increment.

    None of them needs a lock: under the global interpreter lock ``counters.hits += 1`` cannot be
    interrupted.

    Attributes
    ----------
    hits, fallbacks, errors, misses
        As in `Stats`.
    unknown : int
        Calls of sizes without a solution, answered by the original. They are not in `fallbacks` and
        `misses`, so that each of them costs a single increment.
    """

    hits: int = 0
    fallbacks: int = 0
    errors: int = 0
    unknown: int = 0
    misses: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def miss(self, reason: str) -> None:
        """Count a call for which no solution was tried."""
        self.misses[reason] += 1

    def snapshot(self) -> Stats:
        """Return the current counts."""
        misses, unknown = dict(self.misses), self.unknown
        if unknown:
            misses[NO_CHOICE] = misses.get(NO_CHOICE, 0) + unknown
        return Stats(self.hits, self.fallbacks + unknown, self.errors, misses)

"""Making calls: the dispatcher of a definition decides for each who answers it.

What can be known beforehand is worked out when a dispatcher is made, and written into the function
that all calls go through (`hot_path`). A call of a pattern that has been seen is recognised by one
check (`recognition`); any other is examined in full (`guards`).
"""

from flashinfer_bench.apply.dispatch.capture import is_kept
from flashinfer_bench.apply.dispatch.dispatcher import Dispatcher
from flashinfer_bench.apply.dispatch.entries import EntryView
from flashinfer_bench.apply.dispatch.stats import REASONS, Counters, Stats
from flashinfer_bench.apply.dispatch.target import Resolver, Target

__all__ = [
    "REASONS",
    "Counters",
    "Dispatcher",
    "EntryView",
    "Resolver",
    "Stats",
    "Target",
    "is_kept",
]

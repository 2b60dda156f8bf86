"""Making calls: the dispatcher of a definition decides what answers each.

What can be known beforehand is worked out when a dispatcher is made, and written into the function
that all calls go through (`hot_path`). A call of a pattern that has been seen is recognised by one
check (`recognition`); any other is examined in full (`guards`).
"""

from flashinfer_bench.apply.dispatch.dispatcher import Dispatcher
from flashinfer_bench.apply.dispatch.stats import Counters, Stats
from flashinfer_bench.apply.dispatch.target import Resolver, Target

__all__ = ["Counters", "Dispatcher", "Resolver", "Stats", "Target"]

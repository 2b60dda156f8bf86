"""Dispatch of calls: the dispatcher of a definition decides what answers each call.

Everything known in advance is computed when a dispatcher is created, and built into the function
that all calls pass through (`hot_path`). A call whose pattern is known is recognised by a single
check (`recognition`); any other call is examined in full (`guards`).
"""

from flashinfer_bench.apply.dispatch.dispatcher import Dispatcher
from flashinfer_bench.apply.dispatch.stats import Counters, Stats
from flashinfer_bench.apply.dispatch.target import Resolver, Target

__all__ = ["Counters", "Dispatcher", "Resolver", "Stats", "Target"]

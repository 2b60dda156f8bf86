"""Clocks: timing backends, and a function that uses the best one there is."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.timing.base import Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Timer", "time_runnable"]


def time_runnable(
    fn: Callable[..., Any],
    args: Sequence[Any],
    warmup: int,
    iters: int,
    device: str,
    *,
    timer: Optional[str] = None,
) -> float:
    """Time `fn` in this process, always with the same arguments.

    For a look at code that you trust. `flashinfer_bench.bench.Benchmark` measures code of others
    in a process of its own, with new arguments for each call.

    Parameters
    ----------
    fn : callable
        What to time.
    args : sequence
        Its positional arguments, outputs included if it takes them.
    warmup, iters : int
        Untimed and timed calls.
    device : str
        Where `fn` works: ``cpu``, ``cuda`` or ``cuda:N``.
    timer : str, optional
        Name of the timing backend; by default the best that can be used.

    Returns
    -------
    float
        Median latency in milliseconds.

    Raises
    ------
    CapabilityError
        If no timing backend can be used for `device`, or not the one that is named.
    ConfigError
        If `warmup` is negative or `iters` less than 1.
    """
    from flashinfer_bench.bench.backends import pick_timer
    from flashinfer_bench.plugins import default_catalog

    arguments, place = tuple(args), str(device)
    chosen, _ = pick_timer(default_catalog(), place, timer, trust="off")
    clock: Timer = chosen.load()()
    return median(
        clock.measure(fn, lambda index: arguments, warmup=warmup, iterations=iters, device=place)
    )

"""Clocks: timing backends, and a function that uses the best one there is."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.timing.base import Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Timer", "time_runnable"]


def time_runnable(
    fn: Callable[..., Any], args: Sequence[Any], warmup: int, iters: int, device: str
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

    Returns
    -------
    float
        Median latency in milliseconds.

    Raises
    ------
    CapabilityError
        If no timing backend can be used for `device`.
    ValueError
        If `warmup` is negative or `iters` less than 1.
    """
    from flashinfer_bench.plugins import default_catalog

    if warmup < 0 or iters < 1:
        raise ValueError(f"warmup={warmup}, iters={iters}: need warmup >= 0 and iters >= 1")
    arguments = tuple(args)
    timer: Timer = default_catalog().select_timer(str(device)).load()()
    samples = timer.measure(
        fn, lambda index: arguments, warmup=warmup, iterations=iters, device=str(device)
    )
    return median(samples)

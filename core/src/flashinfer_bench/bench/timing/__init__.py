"""Timers, and a function that uses the best one available."""

from __future__ import annotations

import logging
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.bench.timing.base import Timer
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.plugins import Catalog, Registered, TimerSpec, default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Timer", "pick_timer", "time_runnable"]

logger = logging.getLogger(__name__)


@old_parameters
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
    in a separate process, with new arguments for each call.

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
    arguments, place = tuple(args), str(device)
    chosen, _ = pick_timer(default_catalog(), place, timer, trust="off")
    clock: Timer = chosen.load()()
    return median(
        clock.measure(fn, lambda index: arguments, warmup=warmup, iterations=iters, device=place)
    )


def pick_timer(
    catalog: Catalog,
    device: str,
    name: Optional[str] = None,
    *,
    trust: str = "full",
    cache: str = "cold",
) -> tuple[Registered[TimerSpec], Optional[str]]:
    """Return the timer for a run, and a note for every trace if it is not the best one installed.

    Which better timer could not be used, why, and what to do about it is also a warning.

    Parameters
    ----------
    catalog : Catalog
        What is installed.
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    name : str, optional
        Take this one, or none. Timers for trusted solutions are taken only by name.
    trust : str
        Whether solutions are trusted: ``full`` if they are not, ``off`` if they are.
    cache : str
        What calls shall find in the caches: ``cold`` or ``warm``.

    Raises
    ------
    CapabilityError
        If there is none that can be used here, or not of that name.
    ConfigError
        If the named one does not go with `trust` or `cache`.
    """
    kind = device.partition(":")[0].strip().lower()
    timers = [entry for entry in catalog.timers if kind in entry.spec.devices]
    fitting = [one for one in timers if one.spec.why_trust is None and cache in one.spec.caches]
    if name is not None:
        named = catalog.timers.for_device(device, name)
        why, caches = named.spec.why_trust, named.spec.caches
        if why is not None and trust != "off":
            others = ", ".join(one.name for one in fitting)
            raise ConfigError(
                f"timer {name!r} {why}; --trust {trust} does not allow that",
                hint="use --trust off if you trust the solutions"
                + (f", or another timer: {others}" if others else ""),
            )
        if cache not in caches:
            raise ConfigError(
                f"timer {name!r} supports only {' and '.join(caches)} caches, not {cache} ones",
                hint=f"use --cache {caches[0]}, or another timer: run 'fib timers list'",
            )
        return named, None
    for place, entry in enumerate(fitting):
        if entry.availability():
            better = [f"{one.name!r} cannot be used: {_told(one)}" for one in fitting[:place]]
            if not better:
                return entry, None
            note = f"timing {device} with {entry.name!r}, because {'; '.join(better)}"
            logger.warning("%s", note)
            return entry, note
    catalog.timers.for_device(device)  # raises, and says more, if there is none at all
    told = [
        f"{entry.name} ({_told(entry)})"
        if not entry.availability()
        else f"{entry.name} (only by name, with --trust off)"
        if entry.spec.why_trust
        else f"{entry.name} (only {' and '.join(entry.spec.caches)} caches)"
        for entry in timers
    ]
    raise CapabilityError(
        f"no timer for {device!r} with {cache} caches can be used here; installed: "
        f"{', '.join(told)}",
        hint="run 'fib timers list' to see what is installed",
    )


def _told(entry: Registered[TimerSpec]) -> str:
    answer = entry.availability()
    return f"{answer.reason} ({answer.remedy})" if answer.remedy else answer.reason

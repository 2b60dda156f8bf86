"""Which timing backend takes the latencies of a run, and what is to be said about that."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog, Registered, TimerSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimerChoice:
    """The timer of a run.

    Attributes
    ----------
    registered : Registered
        Its record, and where it comes from.
    note : str, optional
        Which better timer could not be used, why, and what to do about it. It belongs into every
        trace, because latencies that different timers take are not comparable.
    """

    registered: Registered[TimerSpec]
    note: Optional[str] = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.registered.name


def pick_timer(
    catalog: Catalog,
    device: str,
    name: Optional[str] = None,
    *,
    trust: str = "full",
    cache: str = "cold",
) -> TimerChoice:
    """Return the timer for a run; if it is not the best one installed, say so in a warning.

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
        named = catalog.select_timer(device, name)
        _require_fit(named, [one.name for one in fitting], trust, cache)
        return TimerChoice(named)
    for place, entry in enumerate(fitting):
        if entry.availability():
            better = [f"{one.name!r} cannot be used: {_told(one)}" for one in fitting[:place]]
            if not better:
                return TimerChoice(entry)
            note = f"timing {device} with {entry.name!r}, because {'; '.join(better)}"
            logger.warning("%s", note)
            return TimerChoice(entry, note)
    catalog.select_timer(device)  # raises, and says more, if there is none at all
    told = [
        f"{entry.name} ({_told(entry)})"
        if not entry.availability()
        else f"{entry.name} (only by name, with --trust off)"
        if entry.spec.why_trust
        else f"{entry.name} (only {' and '.join(entry.spec.caches)} caches)"
        for entry in timers
    ]
    raise CapabilityError(
        f"no timer for {device!r} with {cache} caches can be used here; there are: "
        f"{', '.join(told)}",
        hint="run 'fib timers list' to see what is installed",
    )


def _told(entry: Registered[TimerSpec]) -> str:
    answer = entry.availability()
    return f"{answer.reason} ({answer.remedy})" if answer.remedy else answer.reason


def _require_fit(named: Registered[TimerSpec], others: list[str], trust: str, cache: str) -> None:
    spec = named.spec
    if spec.why_trust is not None and trust != "off":
        raise ConfigError(
            f"timer {named.name!r} {spec.why_trust}; --trust {trust} does not allow that",
            hint="give --trust off if you trust the solutions"
            + (f", or take another timer: {', '.join(others)}" if others else ""),
        )
    if cache not in spec.caches:
        raise ConfigError(
            f"timer {named.name!r} has {' and '.join(spec.caches)} caches only, not {cache} ones",
            hint=f"give --cache {spec.caches[0]}, or take another timer: run 'fib timers list'",
        )

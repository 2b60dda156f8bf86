"""The devices of a run, and what plugins provide for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.errors import CapabilityError, ConfigError, PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.bench.measurement import MeasurementMethod
    from flashinfer_bench.plugins import Catalog, MeasurementSpec, Registered, TimerSpec

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def choose_devices(device: Optional[str]) -> list[str]:
    """Return the devices of a run.

    Parameters
    ----------
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``; None stands for all CUDA devices, else the CPU.

    Raises
    ------
    CapabilityError
        If there is no such device here.
    """
    from flashinfer_bench.tensors import list_cuda_devices

    if device is None:
        return list_cuda_devices() or ["cpu"]
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return [device]
    name = f"cuda:{index or 0}"
    available = list_cuda_devices()
    if name not in available:
        there = ", ".join(available) or "no CUDA device"
        raise CapabilityError(
            f"device {device!r} is not there; this machine has {there}",
            hint="use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES",
        )
    return [name]


def make_executor(catalog: Catalog, device: str, name: Optional[str] = None) -> Executor:
    """Return a new executor for `device`, not started yet.

    Raises
    ------
    CapabilityError
        If there is none (of that name).
    PluginLoadError
        If what is registered is not an `Executor`, or cannot be imported.
    """
    entry = catalog.select_executor(device, name)
    return load_subclass(entry, Executor)(device)  # type: ignore[type-abstract]


def load_subclass(entry: Registered[Any], base: type[_T]) -> type[_T]:
    """Import what a record names, which has to be a subclass of `base`.

    Raises
    ------
    PluginLoadError
        If it is not, or cannot be imported.
    """
    factory = entry.load()
    if isinstance(factory, type) and issubclass(factory, base):
        return factory
    raise PluginLoadError(
        f"{entry.spec.kind} {entry.name!r} of {entry.origin}: {entry.spec.factory} is not a "
        f"subclass of {base.__name__}"
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
        named = catalog.select_timer(device, name)
        why, caches = named.spec.why_trust, named.spec.caches
        if why is not None and trust != "off":
            others = ", ".join(one.name for one in fitting)
            raise ConfigError(
                f"timer {name!r} {why}; --trust {trust} does not allow that",
                hint="give --trust off if you trust the solutions"
                + (f", or take another timer: {others}" if others else ""),
            )
        if cache not in caches:
            raise ConfigError(
                f"timer {name!r} has {' and '.join(caches)} caches only, not {cache} ones",
                hint=f"give --cache {caches[0]}, or take another timer: run 'fib timers list'",
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


def pick_measurement(
    catalog: Catalog, device: str, name: Optional[str] = None
) -> MeasurementMethod:
    """Return how solutions are measured on a device.

    Parameters
    ----------
    catalog : Catalog
        Where the methods are registered.
    device : str
        ``cpu`` or ``cuda:N``.
    name : str, optional
        Take this one; by default the one of the highest priority that can be used here. One that
        cannot be loaded is then passed over, with a warning.

    Raises
    ------
    CapabilityError
        If the named one is not registered, or cannot be used here.
    PluginLoadError
        If it cannot be loaded.
    """
    if name is None:
        kind = device.partition(":")[0]
        for entry in catalog.measurements:
            if kind in entry.spec.devices and entry.availability():
                try:
                    return _made(entry, device)
                except PluginLoadError as error:
                    logger.warning("%s", error)
    return _made(catalog.select_measurement(device, name), device)


def _made(entry: Registered[MeasurementSpec], device: str) -> MeasurementMethod:
    from flashinfer_bench.bench.measurement import MeasurementMethod

    factory = load_subclass(entry, MeasurementMethod)  # type: ignore[type-abstract]
    subject = f"measurement {entry.name!r} of {entry.origin}"
    try:
        made = factory(device)
    except Exception as error:
        raise PluginLoadError(f"{subject}: {type(error).__name__}: {error}") from error
    if made.name != entry.name:
        raise PluginLoadError(f"{subject}: {entry.spec.factory} calls itself {made.name!r}")
    return made

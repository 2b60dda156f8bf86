"""Choosing the plugins that a run needs on a device, and saying so where it is not the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.bench.timing.choice import TimerChoice as TimerChoice
from flashinfer_bench.bench.timing.choice import pick_timer as pick_timer
from flashinfer_bench.errors import CapabilityError, PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog


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


def choose_timer(
    catalog: Catalog,
    device: str,
    name: Optional[str] = None,
    *,
    trust: str = "full",
    cache: str = "cold",
) -> str:
    """Return the name of the timing backend for `device`.

    A better one that cannot be used here is named in a warning: latencies that different timers
    take are not comparable.

    Parameters
    ----------
    catalog : Catalog
        What is installed.
    device : str
        The device.
    name : str, optional
        Take this one, or none.
    trust, cache : str
        As of `pick_timer`, which also returns what is to be noted.

    Raises
    ------
    CapabilityError
        If there is none.
    ConfigError
        If the named one does not go with `trust` or `cache`.
    """
    return pick_timer(catalog, device, name, trust=trust, cache=cache).name


def timer_version(catalog: Catalog, device: str, name: str) -> str:
    """Return the version of a timing backend as this process knows it.

    Raises
    ------
    CapabilityError
        If there is none of that name.
    PluginLoadError
        If what is registered is not a `Timer`, or cannot be imported.
    """
    from flashinfer_bench.bench.timing import Timer

    registered = catalog.select_timer(device, name)
    factory = registered.load()
    if not (isinstance(factory, type) and issubclass(factory, Timer)):
        raise PluginLoadError(
            f"timer {registered.spec.name!r} of {registered.origin}: "
            f"{registered.spec.factory} is not a subclass of Timer"
        )
    return factory.version


def make_executor(catalog: Catalog, device: str, name: Optional[str] = None) -> Executor:
    """Return a new executor for `device`, not started yet.

    Raises
    ------
    CapabilityError
        If there is none (of that name).
    PluginLoadError
        If what is registered is not an `Executor`, or cannot be imported.
    """
    registered = catalog.select_executor(device, name)
    factory = registered.load()
    if not (isinstance(factory, type) and issubclass(factory, Executor)):
        raise PluginLoadError(
            f"executor {registered.spec.name!r} of {registered.origin}: "
            f"{registered.spec.factory} is not a subclass of Executor"
        )
    return factory(device)

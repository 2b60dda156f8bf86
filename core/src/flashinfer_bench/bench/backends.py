"""The devices of a run, and what plugins provide for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.errors import CapabilityError, PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.bench.measurement import MeasurementMethod
    from flashinfer_bench.plugins import Catalog, MeasurementSpec, Registered

logger = logging.getLogger(__name__)


def choose_devices(device: Optional[str]) -> list[str]:
    """Return the devices of a run.

    Parameters
    ----------
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``, or several with commas between; None stands for all CUDA
        devices, else the CPU.

    Raises
    ------
    CapabilityError
        If there is no such device here.
    """
    from flashinfer_bench.tensors import list_cuda_devices

    if device is None:
        return list_cuda_devices() or ["cpu"]
    if "," in device:
        each = (name for part in device.split(",") for name in choose_devices(part))
        return list(dict.fromkeys(each))
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return [device]
    name = f"cuda:{index or 0}"
    available = list_cuda_devices()
    if name not in available:
        there = ", ".join(available) or "no CUDA device"
        raise CapabilityError(
            f"there is no device {device!r}; this machine has {there}",
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
    entry = catalog.executors.for_device(device, name)
    return entry.load_subclass(Executor)(device)  # type: ignore[type-abstract]


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
    return _made(catalog.measurements.for_device(device, name), device)


def _made(entry: Registered[MeasurementSpec], device: str) -> MeasurementMethod:
    from flashinfer_bench.bench.measurement import MeasurementMethod

    factory = entry.load_subclass(MeasurementMethod)  # type: ignore[type-abstract]
    subject = f"measurement {entry.name!r} of {entry.origin}"
    try:
        made = factory(device)
    except Exception as error:
        raise PluginLoadError(f"{subject}: {type(error).__name__}: {error}") from error
    if made.name != entry.name:
        raise PluginLoadError(f"{subject}: {entry.spec.factory} calls itself {made.name!r}")
    return made

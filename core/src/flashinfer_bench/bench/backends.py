"""The devices of a run, and what plugins provide for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.errors import CapabilityError, PluginLoadError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Catalog, Registered

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

    timer = load_subclass(catalog.select_timer(device, name), Timer)  # type: ignore[type-abstract]
    return timer.version


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

"""The devices of a run, and what plugins provide for them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Optional, Protocol

from flashinfer_bench import env
from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.errors import CapabilityError, PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench import data
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.evaluation import NotEvaluated
    from flashinfer_bench.bench.measurement import MeasurementMethod
    from flashinfer_bench.bench.plan import SkipKind
    from flashinfer_bench.plugins import Catalog, MeasurementSpec, Registered

logger = logging.getLogger(__name__)


class DeviceRunner(Protocol):
    """Evaluates solutions on one device, here or elsewhere; `Runner` is the one for here.

    It belongs to one thread; only `interrupt` may be called from another one.

    Attributes
    ----------
    device : str
        Its name in messages.
    interrupted : bool
        Whether `interrupt` has been called.
    """

    device: str
    interrupted: bool

    @property
    def environment(self) -> data.Environment:
        """Hardware and libraries of the evaluations."""

    def evaluate_each(
        self,
        definition: data.Definition,
        workload: data.Workload,
        solutions: Iterable[data.Solution],
        config: BenchmarkConfig,
        root: Optional[Path] = None,
        *,
        on_start: Callable[[data.Solution], None],
        on_skip: Callable[[data.Solution, NotEvaluated], None],
    ) -> Iterator[tuple[data.Solution, data.Evaluation]]:
        """Yield each evaluation as soon as it ends, once; see `Runner.evaluate_each`.

        Raises
        ------
        RunnerFatalError
            If the device is lost: others then do what is left.
        RunInterrupted
            After `interrupt`.
        """

    def interrupt(self) -> None:
        """End what is going on, from another thread."""

    def close(self) -> None:
        """End everything that was started; idempotent, does not raise."""


class Distributor(ABC):
    """Divides a run among devices, which may be those of other machines; made for each run.

    A plugin registers a subclass by a `flashinfer_bench.plugins.ExecutorSpec` that distributes. The
    run stores traces and tells observers as ever; what is built where is up to the runners.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings of the run, with a seed.
    """

    def __init__(self, config: BenchmarkConfig) -> None:
        self.config = config

    @abstractmethod
    def open(self, trace_set: data.TraceSet) -> Sequence[DeviceRunner]:
        """Return a runner for each device, at least one.

        Each kind of hardware gets every evaluation, from one of its devices.

        Parameters
        ----------
        trace_set : TraceSet
            What the run is about.

        Raises
        ------
        CapabilityError
            If there is no suitable device.
        """

    def obstacle(self, solution: data.Solution, hardware: str) -> Optional[tuple[SkipKind, str]]:
        """Return why a solution cannot be evaluated on some hardware; None if it can be."""
        return None

    def close(self) -> None:  # noqa: B027 - not all hold anything
        """End everything that was started; idempotent, does not raise."""


def find_distributor(catalog: Catalog, config: BenchmarkConfig) -> Optional[Distributor]:
    """Return the distributor that the settings ask for; None for executors on this machine.

    Raises
    ------
    CapabilityError
        If there is no executor of that name, or it cannot be used here.
    """
    entry = catalog.executors.find(config.executor) if config.executor else None
    if entry is None or not entry.spec.distributes:
        return None
    entry = catalog.executors.first_usable([entry], repr(entry.name))
    return entry.load_subclass(Distributor)(config)  # type: ignore[type-abstract]


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


def likely_devices(device: Optional[str]) -> list[str]:
    """Return what `choose_devices` will probably return, without importing torch."""
    from flashinfer_bench.tensors import nvidia_gpus

    if device is not None:
        names = (part.strip() for part in device.split(","))
        return list(dict.fromkeys("cuda:0" if one == "cuda" else one for one in names if one))
    visible, count = env.cuda_visible_devices(), len(nvidia_gpus())
    if visible is not None:  # what follows -1 is ignored
        ends = (n for n, one in enumerate(visible) if one == "NoDevFiles" or one.startswith("-"))
        count = min(count, next(ends, len(visible)))
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def make_executor(catalog: Catalog, device: str, name: Optional[str] = None) -> Executor:
    """Return a new executor for `device`, not started yet.

    Raises
    ------
    CapabilityError
        If there is none (of that name).
    PluginLoadError
        If what is registered is not an `Executor`, or cannot be imported.
    """
    if name is not None and catalog.executors.find(name).spec.distributes:
        raise CapabilityError(
            f"executor {name!r} divides runs among devices of its own; it has no process for "
            f"{device!r} of this machine",
            hint="use it with 'fib run', or leave --executor out",
        )
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

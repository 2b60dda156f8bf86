"""Which devices there are, and what a run took place on."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.data import Environment

# Distributions whose version can change a result or a latency.
_LIBRARIES = {
    "torch": "torch",
    "triton": "triton",
    "tilelang": "tilelang",
    "apache-tvm-ffi": "tvm_ffi",
    "flashinfer-python": "flashinfer",
}


def default_device() -> str:
    """Return the best device there is: ``cuda:0`` where it can be used, else ``cpu``."""
    import torch

    return "cuda:0" if torch.cuda.is_available() and torch.cuda.device_count() else "cpu"


def list_cuda_devices() -> list[str]:
    """Return ``cuda:0``, ``cuda:1``, … for every visible device; empty without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def hardware_from_device(device: str) -> str:
    """Return the name of the hardware behind a device.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    str
        For CUDA the name that the driver tells, for a CPU its model and number of usable cores.

    Raises
    ------
    CapabilityError
        If this machine has no such device.
    """
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise CapabilityError(f"{device!r} does not name a device: {error}") from None
    if kind == "cpu":
        return cpu_hardware()
    if kind != "cuda":
        raise CapabilityError(f"device {device!r} is not supported; use cpu, cuda or cuda:N")
    _require_cuda(device)
    return str(torch.cuda.get_device_name(torch.device(device)))


def cpu_hardware() -> str:
    """Return the name of the CPU, `hardware_from_device` of ``cpu``, without torch."""
    return f"{_cpu_model()} ({_usable_cores()} cores)"


def env_snapshot(device: str) -> Environment:
    """Describe where a run takes place.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    Environment
        The hardware's name, and the versions of Python, torch, CUDA and the kernel libraries that
        are installed.

    Raises
    ------
    CapabilityError
        If this machine has no such device.
    """
    import torch

    from flashinfer_bench.data import Environment

    hardware = hardware_from_device(device)
    libs = {"python": platform.python_version(), **_installed_versions()}
    libs["torch"] = torch.__version__
    libs["flashinfer_bench"] = __version__
    if torch.version.cuda is not None:
        libs["cuda"] = torch.version.cuda
    return Environment(hardware=hardware, libs=libs)


def cpu_threads() -> int:
    """Return how many threads torch may use for a solution on the CPU.

    One core stays free for the judge and the rest of the machine: an OpenMP loop waits for its
    slowest thread, so that a single busy core would show in every latency. ``FIB_CPU_THREADS`` sets
    another number.

    Returns
    -------
    int
        At least 1.
    """
    return env.cpu_threads() or max(1, _usable_cores() - 1)


def _require_cuda(device: str) -> None:
    import torch

    available = list_cuda_devices()
    if not available:
        raise CapabilityError(
            f"device {device!r} was asked for, but torch {torch.__version__} sees no CUDA device",
            hint="Use --device cpu, or check the driver with nvidia-smi.",
        )
    index = torch.device(device).index or 0
    if index >= len(available):
        raise CapabilityError(f"there is no {device!r}; there are {', '.join(available)}")


@lru_cache(maxsize=1)
def _cpu_model() -> str:
    for line in _lines_of(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "CPU"


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # only Linux has it
        return []


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _cached_versions() -> tuple[tuple[str, str], ...]:
    found = []
    for distribution, name in _LIBRARIES.items():
        try:
            found.append((name, metadata.version(distribution)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _installed_versions() -> dict[str, str]:
    return dict(_cached_versions())

"""List the devices of this machine, and describe the one that a run used."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import Environment

_ASSIGNMENT = re.compile(r"^(__version__|cuda)\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_DEVICE = re.compile(r"(cpu|cuda)(?::([0-9]{1,4}))?")
_NOT_SUPPORTED = 3  # an NVML return code
# Distributions, besides those of languages, whose version can change a result or a latency.
_LIBRARIES = {"apache-tvm-ffi": "tvm_ffi", "flashinfer-python": "flashinfer"}


def list_cuda_devices() -> list[str]:
    """Return ``cuda:0``, ``cuda:1``, … for every visible device; empty without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def torch_versions() -> dict[str, str]:
    """Return the versions of torch and of the CUDA it was built for, without importing torch.

    A torch that is not installed has no entry, nor has CUDA if torch was built without it.
    """
    try:
        spec = find_spec("torch")
        if spec is None or not spec.origin:
            return {}
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return {}
    names = {"__version__": "torch", "cuda": "cuda"}
    return {names[name]: version for name, version in _ASSIGNMENT.findall(text)}


class Gpu(NamedTuple):
    """A GPU, as the driver's management library (NVML) describes it.

    Attributes
    ----------
    uuid : str
        ``GPU-…``.
    capability : tuple of (int, int)
        Its compute capability.
    name : str, optional
        None where CUDA may use a different name: the parts of a divided GPU have their own.
    """

    uuid: str
    capability: tuple[int, int]
    name: Optional[str]


@cache
def nvidia_gpus() -> tuple[Gpu, ...]:
    """Return all GPUs, visible or not, in PCI bus order, without creating a CUDA context."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return ()
    except (OSError, AttributeError):
        return ()
    count = ctypes.c_uint()
    try:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = [_describe(nvml, index) for index in range(count.value)]
        return tuple(gpu for gpu in found if gpu is not None)
    except AttributeError:  # an old driver lacks a function
        return ()
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: ctypes.CDLL, index: int) -> Optional[Gpu]:
    handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(128)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        or nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid)))
        or nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    if failed:
        return None
    return Gpu(uuid.value.decode(), (major.value, minor.value), _name_of(nvml, handle))


def _name_of(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> Optional[str]:
    name = ctypes.create_string_buffer(128)
    divided, pending = ctypes.c_uint(), ctypes.c_uint()
    result = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(divided), ctypes.byref(pending))
    if divided.value or result not in (0, _NOT_SUPPORTED):
        return None
    if nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))) != 0:
        return None
    text = name.value.decode("utf-8", "replace")
    return None if text.endswith("(nvgpu)") else text or None  # Tegra: not in the CUDA name


def hardware_from_device(device: str) -> str:
    """Return the name of the hardware behind a device.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    str
        For CUDA the name reported by the driver; for a CPU its model and number of usable cores.

    Raises
    ------
    CapabilityError
        If this machine has no such device.
    """
    name = device_named(device)
    if name == "cpu":
        return cpu_hardware()
    import torch

    available = list_cuda_devices()
    if not available:
        raise CapabilityError(
            f"device {device!r} was requested, but torch {torch.__version__} sees no CUDA device",
            hint="Use --device cpu, or check the driver with nvidia-smi.",
        )
    if name not in available:
        raise CapabilityError(f"there is no device {device!r}; available: {', '.join(available)}")
    return str(torch.cuda.get_device_name(name))


def cpu_hardware() -> str:
    """Return the name of the CPU, `hardware_from_device` of ``cpu``, without torch."""
    return f"{_cpu_model()} ({usable_cores()} cores)"


def env_snapshot(device: str) -> Environment:
    """Describe the environment of a run.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    Environment
        The hardware's name, and the installed versions of Python, torch, CUDA and the kernel
        libraries.

    Raises
    ------
    CapabilityError
        If this machine has no such device.
    """
    from flashinfer_bench.data import Environment

    libs = {"python": platform.python_version(), **installed_versions()}
    for distribution, name in _LIBRARIES.items():
        with suppress(metadata.PackageNotFoundError):
            libs[name] = metadata.version(distribution)
    libs["flashinfer_bench"] = __version__
    return Environment(hardware=hardware_from_device(device), libs=libs)


def cpu_threads() -> int:
    """Return how many threads torch may use for a solution on the CPU.

    One core stays free for the judge and the rest of the machine: an OpenMP loop waits for its
    slowest thread, so a single busy core would affect every latency. ``FIB_CPU_THREADS`` overrides
    the number.

    Returns
    -------
    int
        At least 1.
    """
    return env.cpu_threads() or max(1, usable_cores() - 1)


def judge_core() -> Optional[int]:
    """Return the core that is reserved for the judge while solutions on the CPU run.

    Judge and worker poll a shared page while a call is timed. On the same core, each would wait
    several milliseconds for the other's time slice to end.

    Returns
    -------
    int or None
        The lowest core that this process may use; None if there is only one, the system does not
        report cores, or ``FIB_CPU_THREADS`` gives all of them to solutions.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = os.sched_getaffinity(0)
    return min(cores) if cpu_threads() < len(cores) else None


@cache
def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # only Linux has it
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "CPU"


def usable_cores() -> int:
    """Return how many cores of the CPU this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ------------------------------------------------------------------------- without a CUDA context


def this_hardware(device: object = None) -> str:
    """Return the name of this machine's hardware, as in ``environment.hardware`` of a trace.

    The result equals that of `hardware_from_device`. If the driver's management library identifies
    the GPU unambiguously, CUDA is not initialised: a process that has initialised it cannot fork
    workers that use it.

    Parameters
    ----------
    device : str or torch.device, optional
        See `device_named`.

    Raises
    ------
    CapabilityError
        If there is no such device.
    """
    name = device_named(device)
    if name == "cpu":
        return cpu_hardware()
    known = None if _cuda_is_initialised() else _name_of_all_gpus()
    if known is not None and int(name.partition(":")[2]) < _visible_gpus():
        return known
    return hardware_from_device(name)


def device_named(device: object = None) -> str:
    """Return the full name of a device: ``cpu`` or ``cuda:N``.

    Parameters
    ----------
    device : str or torch.device, optional
        ``cpu``, ``cuda:N``, or ``cuda`` for the current GPU. Default: the current GPU if there is
        one, else the CPU. Whether a device with that number exists is not checked.

    Raises
    ------
    CapabilityError
        If it is any other device.
    """
    if device is None:
        return f"cuda:{_current_gpu()}" if _has_gpu() else "cpu"
    found = _DEVICE.fullmatch(str(device))  # str() of a torch.device is its name
    if found is None:
        raise CapabilityError(f"device {device!r} is not supported; use cpu, cuda or cuda:N")
    kind, index = found.groups()
    if kind == "cpu":
        return "cpu"
    return f"cuda:{_current_gpu() if index is None else int(index)}"


def _has_gpu() -> bool:
    """Return whether torch could use a GPU; imports torch only where there is a driver."""
    if env.cuda_visible_devices() == () or not installed_versions().get("cuda"):
        return False
    # Containers may have the CUDA driver but not its management library.
    if "torch" not in sys.modules and not nvidia_gpus():
        try:
            ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        except OSError:
            return False
    return _visible_gpus() > 0


def _visible_gpus() -> int:
    """Return how many GPUs torch may use, as far as can be told without CUDA."""
    import torch

    return torch.cuda.device_count()


def _current_gpu() -> int:
    """Return the index of the GPU that ``cuda`` refers to: 0 unless the program has set another."""
    if not _cuda_is_initialised():
        return 0
    return int(sys.modules["torch"].cuda.current_device())


def _cuda_is_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _name_of_all_gpus() -> Optional[str]:
    """Return the name shared by all GPUs, for which the index is irrelevant, or None."""
    visible = env.cuda_visible_devices() or ()
    if any(entry.startswith("MIG-") for entry in visible):
        return None
    names = {gpu.name for gpu in nvidia_gpus()}
    return names.pop() if len(names) == 1 else None


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions on which the validity of a record depends: torch, cuda and others.

    No library is imported; libraries that are not installed are omitted.
    """
    from flashinfer_bench.plugins import language_versions

    return MappingProxyType({**language_versions(), **torch_versions()})

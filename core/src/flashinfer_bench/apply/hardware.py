"""Which hardware and libraries there are here, and which records of elsewhere still hold.

A latency is the latency on one model of hardware: nothing that was recorded on another one counts,
not even on the next larger model of the same family. Libraries are different. They change with each
environment, what was recorded is built anew here, and most releases change little. So a record is
refused only where the library that compiles the solution is of another *series*:

=========================  ===========================================================
language                   what must be of the same series, if both versions are known
=========================  ===========================================================
``cuda``, ``cpp``          CUDA, on a GPU; nothing on the CPU
``triton``                 triton
``tilelang``               tilelang
``python``                 torch
others                     nothing
=========================  ===========================================================

A series is the major version, or ``0.minor`` before the first major one: 12.8 and 12.4 are one,
12.8 and 13.0 are two.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping

DeviceType = Literal["cpu", "cuda"]

_DEVICE = re.compile(r"(cpu|cuda)(?::([0-9]{1,4}))?")
_CPU_TEXT = re.compile(r"\(\d+ cores\)|^cpu\b", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"^(__version__|cuda)\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_SERIES = re.compile(r"(\d+)(?:\.(\d+))?")
_DECIDING = {"cuda": "cuda", "cpp": "cuda", "triton": "triton", "tilelang": "tilelang"}
_DECIDING["python"] = "torch"


def this_hardware(device: object = None) -> str:
    """Return the name of the hardware here, as traces have it in ``environment.hardware``.

    The judge has it from `flashinfer_bench.tensors.hardware_from_device`, and so it is here. Only
    where the driver's management library leaves no doubt about a GPU its word is taken, which is
    the same: CUDA is not initialised for it. A process that has done so cannot fork workers that
    use it.

    Parameters
    ----------
    device : str or torch.device, optional
        See `device_named`.

    Raises
    ------
    CapabilityError
        If there is no such device.
    """
    from flashinfer_bench.tensors import devices

    name = device_named(device)
    if name == "cpu":
        return devices.cpu_hardware()
    known = None if _cuda_is_initialised() else _name_of_all_gpus()
    if known is not None and int(name.partition(":")[2]) < _visible_gpus():
        return known
    return devices.hardware_from_device(name)


def device_named(device: object = None) -> str:
    """Return the full name of a device: ``cpu`` or ``cuda:N``.

    Parameters
    ----------
    device : str or torch.device, optional
        ``cpu``, ``cuda:N``, or ``cuda`` for the current GPU. By default that, if there is one,
        else the CPU. Whether there is a device of that number is not looked at.

    Raises
    ------
    CapabilityError
        If it is something else.
    """
    if device is None:
        return f"cuda:{_current_gpu()}" if _has_gpu() else "cpu"
    found = _DEVICE.fullmatch(str(device))  # of a torch.device that is its name
    if found is None:
        raise CapabilityError(f"device {device!r} is not supported; use cpu, cuda or cuda:N")
    kind, index = found.groups()
    if kind == "cpu":
        return "cpu"
    return f"cuda:{_current_gpu() if index is None else int(index)}"


def type_of_hardware(hardware: str) -> DeviceType:
    """Return whether ``environment.hardware`` names a CPU, which tells its cores, or a GPU."""
    return "cpu" if _CPU_TEXT.search(hardware) else "cuda"


@dataclass(frozen=True)
class Place:
    """Where solutions shall work.

    Parameters
    ----------
    hardware : str
        As traces name it.
    kind : str
        ``cpu`` or ``cuda``.
    versions : dict of str to str
        Versions of the libraries there.
    """

    hardware: str
    kind: DeviceType
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, hardware: str) -> Place:
        """Return a place with this hardware and the libraries that are installed here."""
        return cls(hardware, type_of_hardware(hardware), installed_versions())


# ---------------------------------------------------------------------------------------- GPUs


def _has_gpu() -> bool:
    """Return whether torch could use a GPU; imports torch only where there is a driver."""
    if env.cuda_visible_devices() == () or not installed_versions().get("cuda"):
        return False
    if "torch" not in sys.modules and not (_gpu_names() or _has_driver()):
        return False
    return _visible_gpus() > 0


def _has_driver() -> bool:
    """Return whether there is the driver of CUDA: containers may lack its management library."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _visible_gpus() -> int:
    """Return how many GPUs torch may use, as far as that is known without CUDA."""
    import torch

    return torch.cuda.device_count()


def _current_gpu() -> int:
    """Return the number of the GPU that ``cuda`` means: the first, unless somebody has chosen."""
    if not _cuda_is_initialised():
        return 0
    return int(sys.modules["torch"].cuda.current_device())


def _cuda_is_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _name_of_all_gpus() -> Optional[str]:
    """Return the name of the GPUs if all have the same, so that numbers do not matter."""
    visible = env.cuda_visible_devices() or ()
    if any(entry.startswith("MIG-") for entry in visible):
        return None
    names = set(_gpu_names())
    return names.pop() if len(names) == 1 else None


_SUCCESS, _NOT_SUPPORTED = 0, 3


@cache
def _gpu_names() -> tuple[Optional[str], ...]:
    """Return the names of all GPUs; None where CUDA has another one, or may have.

    That is so for a GPU that is divided: its parts have names of their own.
    """
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return ()
        try:
            count = ctypes.c_uint()
            if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
                return ()
            return tuple(_gpu_name(nvml, index) for index in range(count.value))
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no driver, or one that lacks a function
        return ()


def _gpu_name(nvml: ctypes.CDLL, index: int) -> Optional[str]:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(128)
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    divided, pending = ctypes.c_uint(), ctypes.c_uint()
    result = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(divided), ctypes.byref(pending))
    if divided.value or result not in (_SUCCESS, _NOT_SUPPORTED):
        return None
    if nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))) != 0:
        return None
    text = name.value.decode("utf-8", "replace")
    return None if text.endswith("(nvgpu)") else text or None  # Tegra: CUDA leaves that out


# ----------------------------------------------------------------------------------- toolchain


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = dict(_torch_versions())
    for library in ("triton", "tilelang"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return tuple(found.items())


def _torch_versions() -> dict[str, str]:
    """Read the versions of torch, and of the CUDA that it is made for, without importing it."""
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.origin:
            return {}
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return {}
    names = {"__version__": "torch", "cuda": "cuda"}
    return {names[name]: version for name, version in _ASSIGNMENT.findall(text)}


def installed_versions() -> dict[str, str]:
    """Return the versions that decide whether records hold: torch, cuda, triton, tilelang.

    Nothing is imported for it; a library that is not installed is not in it.
    """
    return dict(_versions())


def series_of(version: str) -> Optional[str]:
    """Return the part of a version that changes when compatibility is given up, if there is one."""
    found = _SERIES.match(version.strip())
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return str(major) if major else f"0.{minor}"


def toolchain_problem(
    language: str,
    recorded: Mapping[str, str],
    *,
    on: DeviceType,
    here: Optional[Mapping[str, str]] = None,
) -> Optional[str]:
    """Say why a record does not hold with the libraries here, or return None if it does.

    Parameters
    ----------
    language : str
        The solution's.
    recorded : mapping of str to str
        ``environment.libs`` of the record.
    on : str
        ``cpu`` or ``cuda``.
    here : mapping of str to str, optional
        The versions here; `installed_versions` by default.
    """
    library = _DECIDING.get(language)
    if library is None or (library == "cuda" and on == "cpu"):
        return None
    then, now = recorded.get(library), (installed_versions() if here is None else here).get(library)
    if not then or not now:
        return None
    series = series_of(then), series_of(now)
    if None in series or series[0] == series[1]:
        return None
    return f"recorded with {library} {then}, and here is {now}"

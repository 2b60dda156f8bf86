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
others                     what a plugin's `LanguageSpec` says; without one, nothing
=========================  ===========================================================

A series is the major version, or ``0.minor`` before the first major one: 12.8 and 12.4 are one,
12.8 and 13.0 are two.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

DeviceType = Literal["cpu", "cuda"]

_DEVICE = re.compile(r"(cpu|cuda)(?::([0-9]{1,4}))?")
_CPU_TEXT = re.compile(r"\(\d+ cores\)|^cpu\b", re.IGNORECASE)
_SERIES = re.compile(r"(\d+)(?:\.(\d+))?")


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


class Place(NamedTuple):
    """Where solutions shall work.

    Attributes
    ----------
    hardware : str
        As traces name it.
    kind : str
        ``cpu`` or ``cuda``.
    versions : mapping of str to str
        Versions of the libraries there.
    """

    hardware: str
    kind: DeviceType
    versions: Mapping[str, str]

    @classmethod
    def of(cls, hardware: str) -> Place:
        """Return a place with this hardware and the libraries that are installed here.

        ``environment.hardware`` of a CPU tells its cores; anything else is a GPU.
        """
        kind: DeviceType = "cpu" if _CPU_TEXT.search(hardware) else "cuda"
        return cls(hardware, kind, installed_versions())

    def toolchain_problem(self, language: str, recorded: Mapping[str, str]) -> Optional[str]:
        """Say why a record does not hold with the libraries here, or return None if it does.

        Parameters
        ----------
        language : str
            The solution's.
        recorded : mapping of str to str
            ``environment.libs`` of the record.
        """
        known = default_catalog().languages.get(language)
        if known is None:
            return None
        for library in known.spec.libraries:
            if self.kind == "cpu" and library in known.spec.gpu_only:
                continue
            then, now = recorded.get(library, ""), self.versions.get(library, "")
            series = _series_of(then), _series_of(now)
            if None not in series and series[0] != series[1]:
                return f"recorded with {library} {then}, and here is {now}"
        return None


def _series_of(version: str) -> Optional[str]:
    """Return the part of a version that changes when compatibility is given up, if there is one."""
    found = _SERIES.match(version.strip())
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return str(major) if major else f"0.{minor}"


# ---------------------------------------------------------------------------------------- GPUs


def _has_gpu() -> bool:
    """Return whether torch could use a GPU; imports torch only where there is a driver."""
    if env.cuda_visible_devices() == () or not installed_versions().get("cuda"):
        return False
    from flashinfer_bench.tensors.devices import nvidia_gpus

    # Containers may have the driver of CUDA, and lack its management library.
    if "torch" not in sys.modules and not nvidia_gpus():
        try:
            ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        except OSError:
            return False
    return _visible_gpus() > 0


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
    from flashinfer_bench.tensors.devices import nvidia_gpus

    names = {gpu.name for gpu in nvidia_gpus()}
    return names.pop() if len(names) == 1 else None


# ----------------------------------------------------------------------------------- toolchain


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions that decide whether records hold: torch, cuda, triton, ….

    Nothing is imported for it; a library that is not installed is not in it.
    """
    from flashinfer_bench.plugins import language_versions
    from flashinfer_bench.tensors.devices import torch_versions

    return MappingProxyType({**language_versions(), **torch_versions()})

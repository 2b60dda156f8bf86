"""What is known about the machine: a fingerprint, and what the driver tells about a GPU.

All of it is for the record. Nothing here raises, and what is not known is None.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

logger = logging.getLogger(__name__)

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_SALT = "host.salt"
_SALT_BYTES = 16
_DIGITS = 12


@dataclass(frozen=True)
class Clocks:
    """Clocks of a GPU in MHz.

    Attributes
    ----------
    sm, memory : int, optional
        Of the multiprocessors and of the memory.
    """

    sm: Optional[int] = None
    memory: Optional[int] = None


@dataclass(frozen=True)
class Host:
    """The machine and one of its devices.

    Attributes
    ----------
    fingerprint : str
        12 hexadecimal digits; another machine has others.
    driver : str, optional
        Version of the GPU's driver.
    """

    fingerprint: str
    driver: Optional[str] = None
    _gpu: Optional[_Gpu] = None

    def clocks(self) -> Clocks:
        """Return the clocks of the device as they are now."""
        return self._gpu.clocks() if self._gpu is not None else Clocks()


@cache
def host_of(device: str) -> Host:
    """Return what is known about this machine and `device`; gathered once.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    """
    gpu = _find_gpu(device) if device.partition(":")[0] == "cuda" else None
    return Host(host_fingerprint(), gpu.driver if gpu is not None else None, gpu)


@cache
def host_fingerprint() -> str:
    """Return 12 hexadecimal digits that tell this machine from others and name nobody.

    They are a hash over the system's own id, the machine's name and its CPU, together with a random
    number in ``FIB_CACHE_PATH`` that never leaves it: so nobody can find the name by trying names.
    Where that cannot be kept, the name does not enter. A container has a name of its own, and
    counts as another machine.
    """
    from flashinfer_bench.compile.toolkit.fingerprint import cpu_description

    salt = _salt()
    name = platform.node() if salt else ""
    parts = [salt, _machine_id(), name, _without_name(cpu_description())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGITS]


def _without_name(description: str) -> str:
    """Return the description of a CPU; the name of the machine stands in for it on some systems."""
    return description.removesuffix(f" of {platform.node()}")


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        with suppress(OSError, UnicodeDecodeError):
            text = path.read_text(encoding="ascii").strip()
            if text:
                return text
    return ""


def _salt() -> str:
    """Return the random number of this cache; make it if there is none."""
    from flashinfer_bench.compile.toolkit.cache import cache_folder

    path = cache_folder("machine") / _SALT
    for attempt in (_read_salt, _make_salt, _read_salt):  # another process may be quicker
        with suppress(OSError, UnicodeDecodeError):
            if found := attempt(path):
                return found
    return ""


def _read_salt(path: Path) -> str:
    text = path.read_text(encoding="ascii").strip()
    return text if len(text) == 2 * _SALT_BYTES else ""


def _make_salt(path: Path) -> str:
    """Write a new number; only one of several processes can, as a link never replaces a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{_SALT}.{secrets.token_hex(4)}")
    made.write_text(secrets.token_hex(_SALT_BYTES), encoding="ascii")
    try:
        path.hardlink_to(made)
    finally:
        made.unlink()
    return _read_salt(path)


class _Gpu:
    """A GPU, asked through the driver's management library (NVML), which makes no CUDA context."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.driver = _text(nvml.nvmlSystemGetDriverVersion())

    def clocks(self) -> Clocks:
        nvml = self._nvml
        return Clocks(self._clock(nvml.NVML_CLOCK_SM), self._clock(nvml.NVML_CLOCK_MEM))

    def _clock(self, kind: int) -> Optional[int]:
        try:
            return int(self._nvml.nvmlDeviceGetClockInfo(self._handle, kind))
        except self._nvml.NVMLError as error:  # a virtual GPU, or a part of one, may not tell
            logger.debug("no clock: %s", error)
            return None


def _find_gpu(device: str) -> Optional[_Gpu]:
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        logger.debug("nvidia-ml-py is not installed: driver and clocks are not recorded")
        return None
    try:
        pynvml.nvmlInit()
        return _Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(_uuid_of(device)))
    except Exception as error:  # noqa: BLE001 - whatever a driver does, it must not end a run
        logger.debug("%s cannot be asked about driver and clocks: %s", device, error)
        return None


def _uuid_of(device: str) -> str:
    """Return the GPU's UUID: CUDA and NVML number GPUs differently."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)

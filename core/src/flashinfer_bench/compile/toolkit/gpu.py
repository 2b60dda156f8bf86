"""What GPUs there are to compile for, asked without making a CUDA context.

The driver's management library (NVML) is called directly: unlike CUDA, it may be used before a
process forks.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Optional

from flashinfer_bench import env
from flashinfer_bench.compile.toolkit.machine import remembered_devices
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.compile.toolkit.machine import Device

_OLDEST_WITH_FEATURES = (9, 0)
_UNKNOWN_ARCHITECTURE = re.compile(
    r"^nvcc fatal\s*: Unsupported gpu architecture '(?:compute|sm|lto)_(\w+)'"
)
_WRONG_COMPILER = re.compile(
    r"\bhost_config\.h\W.*#error.*\bunsupported (GNU|clang|Microsoft Visual Studio) version"
)


def cuda_architectures() -> tuple[str, ...]:
    """Return the architectures to compile for.

    Returns
    -------
    tuple of str
        Those of ``FIB_CUDA_ARCH_LIST``, as they are written there; else those of the visible GPUs,
        with the features that only they have: ``9.0a``.

    Raises
    ------
    CapabilityError
        If the variable is not set and there is no GPU.
    ValueError
        If the variable names something that is no architecture.
    """
    chosen = env.cuda_arch_list()
    if chosen:
        return chosen
    found = tuple(_with_features(name) for name in gpu_architectures())
    if not found:
        raise CapabilityError(
            "no GPU to compile for: there is none here, and FIB_CUDA_ARCH_LIST is not set",
            hint="Set FIB_CUDA_ARCH_LIST to the architectures to compile for, such as 9.0a.",
        )
    return found


def _with_features(name: str) -> str:
    major, minor = map(int, name.split("."))
    return f"{name}a" if (major, minor) >= _OLDEST_WITH_FEATURES else name


def gpu_architectures() -> tuple[str, ...]:
    """Return the compute capabilities of the visible GPUs, without repetition, lowest first.

    Returns
    -------
    tuple of str
        Such as ``("8.0", "9.0")``; empty if there is no GPU. Where ``CUDA_VISIBLE_DEVICES`` leaves
        open which of several different GPUs it means, those of all.
    """
    visible = env.cuda_visible_devices()
    found = _visible(_devices(), visible)
    if not found and visible != ():
        found = _visible(_devices(again=True), visible)
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def gpu_uuids() -> tuple[str, ...]:
    """Return the UUIDs of all GPUs, visible or not, by their place on the bus; maybe none."""
    return tuple(uuid for uuid, _ in _devices())


def unsupported_by_toolkit(output: str) -> str:
    """Return the line in which nvcc says that it does not go with this machine.

    Parameters
    ----------
    output : str
        What it printed.

    Returns
    -------
    str
        That it does not know an architecture of `cuda_architectures`, or does not work with the
        compiler for C++ that it was given. Empty if it says neither: an architecture that only the
        solution has named is the solution's business.
    """
    for line in output.splitlines():
        found = _UNKNOWN_ARCHITECTURE.search(line)
        if found and found.group(1) in _chosen_numbers():
            return line.strip()
        if _WRONG_COMPILER.search(line):
            return line.strip()
    return ""


def _chosen_numbers() -> set[str]:
    """Return the architectures to compile for, as in nvcc's names for them: ``90a``."""
    try:
        names = cuda_architectures()
    except (CapabilityError, ValueError):
        return set()
    return {name.partition("+")[0].replace(".", "") for name in names}


def _visible(
    devices: tuple[Device, ...], visible: Optional[tuple[str, ...]]
) -> set[tuple[int, int]]:
    everything = {capability for _, capability in devices}
    if visible is None:
        return everything
    found: set[tuple[int, int]] = set()
    for entry in visible:
        chosen = _chosen(devices, entry)
        if not chosen:
            break  # as CUDA does: what comes after an entry that names nothing does not count
        found |= chosen
    return found


def _chosen(devices: tuple[Device, ...], entry: str) -> set[tuple[int, int]]:
    if entry.isdecimal():
        if int(entry) >= len(devices):
            return set()
        # CUDA numbers devices by speed unless told otherwise, and NVML by their place on the bus.
        in_order = env.cuda_device_order() == "PCI_BUS_ID"
        return {d[1] for d in (devices[int(entry) :][:1] if in_order else devices)}
    if entry.startswith("MIG-"):
        return {capability for _, capability in devices}  # a part of one of them
    return {capability for uuid, capability in devices if uuid.startswith(entry)}


@cache
def _devices(*, again: bool = False) -> tuple[Device, ...]:
    """Return all GPUs in NVML's order; nothing where there is no driver."""
    return remembered_devices(_ask_driver, again=again)


def _ask_driver() -> tuple[Device, ...]:
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        nvml = ctypes.CDLL(name)
        if nvml.nvmlInit_v2() != 0:
            return ()
        try:
            return _ask(nvml)
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no such library, or one that lacks a function
        return ()


def _ask(nvml: ctypes.CDLL) -> tuple[Device, ...]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return ()
    described = (_describe(nvml, index) for index in range(count.value))
    return tuple(device for device in described if device is not None)


def _describe(nvml: ctypes.CDLL, index: int) -> Optional[Device]:
    handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        or nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid)))
        or nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    return None if failed else (uuid.value.decode("ascii", "replace"), (major.value, minor.value))

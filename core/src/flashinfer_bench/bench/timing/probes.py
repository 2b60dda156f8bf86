"""Whether a timing backend can be used here, found out without importing torch."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Optional

from flashinfer_bench.plugins import Availability

_CUDA_VERSION = re.compile(r"^cuda[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def cuda_event() -> Availability:
    """Say whether torch is built for CUDA and a driver with a device is there.

    No context is made, so processes can still be forked afterwards.
    """
    version = _cuda_of_torch()
    if version is None:
        return Availability(
            False, "torch is not installed, or built without CUDA", "install a CUDA build of torch"
        )
    devices = _device_count()
    if devices == 0:
        return Availability(False, "no NVIDIA device is found", "check the driver with nvidia-smi")
    return Availability(True, f"CUDA {version}, {devices} devices")


def do_bench() -> Availability:
    """Say whether triton is there, besides what `cuda_event` asks for."""
    answer = cuda_event()
    if answer and importlib.util.find_spec("triton") is None:
        return Availability(False, "triton is not installed", "pip install triton")
    return answer


def _cuda_of_torch() -> Optional[str]:
    """Return the CUDA version that torch is built for, read from its files."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            text = Path(folder, "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        found = _CUDA_VERSION.search(text)
        return found.group(1) if found else None
    return None


def _device_count() -> int:
    """Ask the driver's management library, which makes no context."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        return 0
    try:
        return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0
    finally:
        nvml.nvmlShutdown()

"""The health of a device: a known kernel, timed, and held against that of its peers."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import Optional

_logger = logging.getLogger(__name__)

_CALLS = {"cpu": 10, "cuda": 30}
_BATCH = 20  # calls of a GPU between two looks at the clock


def time_known_kernel(device: str) -> float:
    """Return the seconds that a matrix product takes on a device, the shortest of many.

    The clock of the host is used: solutions cannot have changed it, and calls are long. On the CPU
    one thread computes, since several wait for the slowest core.
    """
    import torch

    cpu = device == "cpu"
    size, dtype = (384, torch.float32) if cpu else (4096, torch.float16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left = torch.ones(size, size, device=device, dtype=dtype)
        found = float("inf")
        for number in range(1 + _CALLS[device.partition(":")[0]]):
            began = time.perf_counter()
            for _ in range(1 if cpu else _BATCH):
                left @ left
            if not cpu:
                torch.cuda.synchronize(device)
            if number:  # the first one loads the library
                found = min(found, time.perf_counter() - began)
        del left
    finally:
        torch.set_num_threads(threads)
    if not cpu:
        torch.cuda.empty_cache()
    return found


def memory_errors(device: str) -> int:
    """Return how many errors a GPU's memory could not correct since the driver started.

    Without ``pynvml``, which need not be there, none are seen; that is warned of.
    """
    if device == "cpu":
        return 0
    try:
        pynvml = import_module("pynvml")
        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - no such library, or no such driver
        _logger.warning("errors of the memory of GPUs are not looked at: %s", error)
        return 0
    with suppress(Exception):  # a GPU without ECC
        import torch

        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
    return 0


def deviation(own: float, others: list[float]) -> Optional[float]:
    """Return how far a device is off its peers: 0.04 is 4 % slower; None without peers.

    Of two devices, the slower one is off.
    """
    if not others:
        return None
    found = own / median(others) - 1
    return max(found, 0.0) if len(others) == 1 else found


class Fitness:
    """The latest health check of each device, by its hardware; for several threads."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()

    def record(self, hardware: str, device: str, seconds: float) -> Optional[float]:
        """Keep the result of a check, and return its `deviation`."""
        with self._lock:
            group = self._seconds.setdefault(hardware, {})
            group[device] = seconds
            return deviation(seconds, [one for name, one in group.items() if name != device])

    def deviation(self, hardware: str, device: str) -> Optional[float]:
        """Return how far a device is off its peers."""
        with self._lock:
            group = dict(self._seconds.get(hardware, {}))
        own = group.pop(device, None)
        return None if own is None else deviation(own, list(group.values()))

    def forget(self, hardware: str, device: str) -> None:
        """Leave out a device that is not used any more."""
        with self._lock:
            self._seconds.get(hardware, {}).pop(device, None)

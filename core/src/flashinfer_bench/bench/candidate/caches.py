"""Emptying the caches of a device, so that every timed call finds them alike."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_TIMES_LARGER = 2
"""How many times a cache's size is written to evict all of it: replacement is not quite in turn."""

_USUAL_L2_BYTES = 2 << 20
_L2_OF_CPU = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


class Caches(Protocol):
    """The caches of one device."""

    def flush(self) -> None:
        """Fill them with something that no solution uses; may return before that is done."""


def caches_of(device: str) -> Caches:
    """Return the caches of a device; no device is touched before they are flushed.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    """
    return CpuCaches() if device == "cpu" else CudaCaches(device)


class CpuCaches:
    """The private caches of the core that calls.

    Those of torch's other threads are left alone: to reach them takes a parallel operation, whose
    threads keep spinning after it, in the way of the judge that is about to look at its clock. The
    last level is shared with other processes, and larger than most inputs.
    """

    def __init__(self) -> None:
        self._set = ctypes.memset
        self._size = _TIMES_LARGER * l2_bytes()
        self._buffer: Optional[ctypes.Array[ctypes.c_char]] = None

    def flush(self) -> None:
        """Write through the private caches of the core that this runs on."""
        if self._buffer is None:
            self._buffer = ctypes.create_string_buffer(self._size)
        self._set(self._buffer, 1, self._size)


def l2_bytes() -> int:
    """Return the size of a core's second-level cache in bytes; a usual one if nothing tells."""
    try:
        text = _L2_OF_CPU.read_text().strip()
        size = int(text[:-1]) * _UNITS[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return _USUAL_L2_BYTES
    return size if size > 0 else _USUAL_L2_BYTES


class CudaCaches:
    """The second-level cache of a GPU, lines included that have been told to stay.

    Parameters
    ----------
    device : str
        ``cuda`` or ``cuda:N``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device = device
        self._empty, self._fill, self._byte = torch.empty, torch.Tensor.fill_, torch.uint8
        self._properties = torch.cuda.get_device_properties
        self._reset = _reset_of_persisting_lines()
        self._buffer: Optional[torch.Tensor] = None

    def flush(self) -> None:
        """Enqueue a write of twice the cache's size on the current stream."""
        if self._buffer is None:
            size = getattr(self._properties(self._device), "L2_cache_size", 0) or 1 << 27
            self._buffer = self._empty(_TIMES_LARGER * size, dtype=self._byte, device=self._device)
        # Before the write: lines that persist are not evicted by it.
        self._reset()
        self._fill(self._buffer, 0)


def _reset_of_persisting_lines() -> Callable[[], Any]:
    """Return the driver's function that makes persisting lines normal ones again.

    A solution may set lines aside that ordinary accesses do not evict, and find its inputs there in
    the next call.
    """
    try:
        return ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):  # no driver, or one from before there were such lines
        return lambda: None

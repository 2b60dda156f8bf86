"""What a candidate does for the device around calls; all of it looked up before a solution is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.candidate.caches import Caches, caches_of
from flashinfer_bench.bench.candidate.processes import libc

if TYPE_CHECKING:
    from collections.abc import Callable

# Of glibc's malloc.h. The largest threshold that it takes is 32 MiB.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_NEVER, _LARGEST, _SPARE = -1, 32 << 20, 256 << 20


class DeviceControl:
    """Waits for a device, and flushes its caches.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``; not touched by this.
    computes : bool
        False for a process that only compiles, and does without torch.
    """

    def __init__(self, device: str, *, computes: bool = True) -> None:
        self.device = device
        self._wait: Optional[Callable[[str], Any]] = None
        self._select: Optional[Callable[[str], Any]] = None
        self._caches: Optional[Caches] = None
        self._stream: Any = None
        self._reading: Any = None
        self._sums: Any = None
        if not computes:
            return
        import torch

        self._caches = caches_of(device)
        self._reading = torch.sum, torch.int32, torch.int64
        if device == "cpu":
            keep_freed_memory()
        else:
            self._wait = torch.cuda.synchronize
            self._select = torch.cuda.set_device
            self._stream = torch.cuda.current_stream

    def select(self) -> None:
        """Make the device the current one: kernels of some languages run on no other."""
        if self._select is not None:
            self._select(self.device)

    def synchronize(self) -> None:
        """Wait until the device has finished everything.

        Raises
        ------
        RuntimeError
            If something that ran on it failed.
        """
        if self._wait is not None:
            self._wait(self.device)

    def shut(self, gate: Any, place: int, word: int) -> bool:
        """Have what is enqueued from now on wait for a word; return whether it does.

        Everything enqueued before has ended then.
        """
        self.synchronize()
        return bool(gate.shut(self._stream(self.device).cuda_stream, place, word))

    def read(self, room: Any) -> None:
        """Enqueue a look at all bytes of a tensor, so that they are in the device's caches."""
        summed, words, sums = self._reading
        if self._sums is None:
            self._sums = room.new_empty((), dtype=sums)
        summed(room.view(words), dim=0, out=self._sums)

    def flush_caches(self) -> None:
        """Empty the device's caches, and wait until that is done."""
        if self._caches is not None:
            self._caches.flush()
        self.synchronize()


def keep_freed_memory() -> None:
    """Have the C library give no memory back that may be wanted again.

    Otherwise large outputs cost a call most of its time for new pages, or nothing, depending on
    what the process has done in between.
    """
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        libc().mallopt(_M_TRIM_THRESHOLD, _NEVER)
        libc().mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        libc().mallopt(_M_TOP_PAD, _SPARE)  # address space; pages come with their first use

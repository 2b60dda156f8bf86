"""Keeping a GPU occupied while the work that is to be timed is enqueued.

Without that the device waits for the host between one kernel and the next, and those gaps are in
the latency. The kernel that occupies it fills every multiprocessor with resident threads: were
there room for others, work that a solution puts on another stream could be done before the clock
starts.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

_BLOCK = 512  # divides the threads that a multiprocessor holds, on every architecture
_PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 nanoseconds)
{
    .reg .pred %others, %early;
    .reg .b32 %thread;
    .reg .b64 %limit, %start, %now;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %others, %thread, 0;
    @%others bra done;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    nanosleep.u32 100;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
done:
    bar.sync 0;
    ret;
}
\0"""
# Should the kernel not be had: cycles that take at least a microsecond on every GPU there is.
_CYCLES_PER_US = 2000


class DeviceHold:
    """Occupies the current device for a while; looks up all that it needs when it is made.

    Attributes
    ----------
    fills : bool
        False once it is known that the device can be kept busy, but not full.
    """

    def __init__(self) -> None:
        import torch

        self.fills = True
        self._sleep: Any = torch.cuda._sleep
        self._properties: Any = torch.cuda.get_device_properties
        self._driver = cuda_driver()
        self._kernels: dict[str, tuple[Any, int]] = {}

    def enqueue(self, microseconds: float, device: str, stream: int) -> None:
        """Enqueue the kernel on a stream, by its handle, of `device`, which is the current one."""
        if self.fills and self._launch(microseconds, device, stream):
            return
        self.fills = False
        self._sleep(int(microseconds * _CYCLES_PER_US))

    def _launch(self, microseconds: float, device: str, stream: int) -> bool:
        if self._driver is None:
            return False
        if device not in self._kernels:
            kernel = _load(self._driver)
            if kernel is None:
                return False
            self._kernels[device] = kernel, self._blocks(device)
        function, blocks = self._kernels[device]
        limit = ctypes.c_uint64(int(microseconds * 1000))
        values = (ctypes.c_void_p * 1)(ctypes.addressof(limit))
        size = (blocks, 1, 1, _BLOCK, 1, 1, 0)
        code = self._driver.cuLaunchKernel(function, *size, ctypes.c_void_p(stream), values, None)
        return bool(code == 0)

    def _blocks(self, device: str) -> int:
        found = self._properties(device)
        threads = getattr(found, "max_threads_per_multi_processor", 2048)
        return int(found.multi_processor_count * (threads // _BLOCK))


def cuda_driver() -> Optional[ctypes.CDLL]:
    """Return the library of the CUDA driver; None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _load(driver: ctypes.CDLL) -> Optional[ctypes.c_void_p]:
    """Have the driver compile the kernel for the current context."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuModuleLoadData(ctypes.byref(module), _PTX) != 0:
        return None
    if driver.cuModuleGetFunction(ctypes.byref(function), module, b"hold") != 0:
        return None
    return function

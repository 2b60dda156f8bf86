"""Keeping a GPU occupied while the work that is to be timed is enqueued.

Without that the device waits for the host between one kernel and the next, and those gaps are in
the latency. The kernel that occupies it fills every multiprocessor with resident threads: were
there room for others, work that a solution puts on another stream could be done before the clock
starts.

It ends when the host says so, by a number in memory that both see: the device begins as soon as
everything is enqueued, however long that took. Only the first block looks there, and tells the
others: hundreds of blocks that read the host's memory would keep the bus busy.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from fib_timing_cuda.driver import Kernel, cuda_driver

LONGEST_US = 1000.0
"""How long the device is held at most: calls that wait for it go on after that."""

_BLOCK = 512  # divides the threads that a multiprocessor holds, on every architecture
_PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .global .align 4 .u32 released;
.visible .entry hold(.param .u64 word, .param .u32 ticket, .param .u64 nanoseconds)
{
    .reg .pred %others, %first, %over, %early;
    .reg .b32 %thread, %block, %ticket, %seen;
    .reg .b64 %word, %told, %limit, %start, %now;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %others, %thread, 0;
    @%others bra done;
    ld.param.u64 %word, [word];
    ld.param.u32 %ticket, [ticket];
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %told, released;
    cvta.global.u64 %told, %told;
    mov.u32 %block, %ctaid.x;
    setp.eq.u32 %first, %block, 0;
    selp.b64 %word, %word, %told, %first;
    mov.u64 %start, %globaltimer;
again:
    ld.volatile.u32 %seen, [%word];
    setp.eq.u32 %over, %seen, %ticket;
    @%over bra tell;
    nanosleep.u32 100;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
tell:
    @%first st.volatile.u32 [%told], %ticket;
done:
    bar.sync 0;
    ret;
}
\0"""
# Should the kernel not be had: cycles that take at least a microsecond on every GPU there is.
_CYCLES_PER_US = 2000
_PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


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
        self._kernels: dict[str, tuple[Kernel, int, ctypes.c_uint64]] = {}
        self._ticket = ctypes.c_uint32(0)
        self._word: Optional[ctypes.c_uint32] = None

    def enqueue(self, expected_us: float, device: str, stream: int) -> None:
        """Enqueue the kernel on a stream of the current device.

        Parameters
        ----------
        expected_us : float
            Microseconds until `release` is likely to be called: where the kernel cannot be had, the
            device is kept busy for so long.
        device : str
            The current device.
        stream : int
            Handle of the stream.
        """
        if self.fills and self._launch(device, stream):
            return
        self.fills = False
        self._sleep(int(expected_us * _CYCLES_PER_US))

    def release(self) -> None:
        """Let the device go on; without this it does after `LONGEST_US`."""
        if self._word is not None:
            self._word.value = self._ticket.value

    def _launch(self, device: str, stream: int) -> bool:
        found = self._kernels.get(device) or self._prepare(device)
        if found is None:
            return False
        kernel, blocks, word = found
        self._ticket.value += 1  # begins again at 0 after 2**32 calls
        limit = ctypes.c_uint64(int(LONGEST_US * 1000))
        values = (word, self._ticket, limit)
        return kernel.launch(stream, *values, blocks=blocks, threads=_BLOCK) == 0

    def _prepare(self, device: str) -> Optional[tuple[Kernel, int, ctypes.c_uint64]]:
        if self._driver is None:
            return None
        kernel, word = Kernel(self._driver, _PTX, b"hold"), self._shared_word(self._driver)
        if kernel.error or word is None:
            return None
        self._kernels[device] = kernel, self._blocks(device), word
        return self._kernels[device]

    def _shared_word(self, driver: ctypes.CDLL) -> Optional[ctypes.c_uint64]:
        """Return the device's address of the number that the host writes."""
        host, seen = ctypes.c_void_p(), ctypes.c_uint64()
        if self._word is None:
            if driver.cuMemHostAlloc(ctypes.byref(host), 4, _PORTABLE_AND_MAPPED) != 0:
                return None
            assert host.value is not None
            self._word = ctypes.c_uint32.from_address(host.value)
            self._word.value = self._ticket.value
        host.value = ctypes.addressof(self._word)
        found = driver.cuMemHostGetDevicePointer_v2(ctypes.byref(seen), host, 0)
        return seen if found == 0 else None

    def _blocks(self, device: str) -> int:
        found = self._properties(device)
        threads = getattr(found, "max_threads_per_multi_processor", 2048)
        return int(found.multi_processor_count * (threads // _BLOCK))

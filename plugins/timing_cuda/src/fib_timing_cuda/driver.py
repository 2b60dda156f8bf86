"""Access to the CUDA driver through ctypes: small kernels that do not depend on torch's."""

from __future__ import annotations

import ctypes
from statistics import median
from typing import Any, Optional

# Ends when the device's clock has advanced by `count` nanoseconds, and stores the actual advance at
# `place` unless that is 0.
SPIN = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 count, .param .u64 place)
{
    .reg .pred %early, %store;
    .reg .b64 %limit, %place, %start, %now;
    ld.param.u64 %limit, [count];
    ld.param.u64 %place, [place];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
    setp.ne.u64 %store, %place, 0;
    @%store st.u64 [%place], %now;
    ret;
}
\0"""


def cuda_driver() -> Optional[ctypes.CDLL]:
    """Return the library of the CUDA driver; None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class Kernel:
    """A kernel that the driver compiles for the current context.

    Attributes
    ----------
    error : int
        The driver's error code if the kernel is not available; 0 if it is.
    """

    def __init__(self, driver: Any, ptx: bytes, name: bytes) -> None:
        self._launch: Any = driver.cuLaunchKernel
        self._function, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.error = int(
            driver.cuModuleLoadData(ctypes.byref(module), ptx)
            or driver.cuModuleGetFunction(ctypes.byref(self._function), module, name)
        )

    def launch(self, stream: int, *values: Any, blocks: int = 1, threads: int = 1) -> int:
        """Enqueue the kernel with ctypes arguments; return the driver's error code."""
        size = (blocks, 1, 1, threads, 1, 1, 0)
        given = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        where = ctypes.c_void_p(stream)
        return int(self._launch(self._function, *size, where, given, None))


# Keeping a GPU occupied while the work to be timed is enqueued.
#
# Otherwise the device waits for the host between kernels, and these gaps become part of the
# latency. The kernel fills every multiprocessor with resident threads: if there were space for
# others, work that a solution puts on another stream could finish before the clock starts.
#
# It ends when the host sets a number in shared memory: the device starts as soon as everything is
# enqueued, however long that took. Only the first block polls this memory, and notifies the others:
# hundreds of blocks reading the host's memory would keep the bus busy.


LONGEST_US = 1000.0
"""Maximum time for which the device is held; calls waiting for it then continue."""

_BLOCK = 512  # divides the thread count of a multiprocessor on every architecture
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
# Fallback without the kernel: cycles that take at least a microsecond on every existing GPU.
_CYCLES_PER_US = 2000
_PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


class DeviceHold:
    """Occupies the current device for a while; looks up everything it needs in the constructor.

    Attributes
    ----------
    fills : bool
        False once it is known that the device can be kept busy but not filled.
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
            Expected microseconds until `release` is called. If the kernel is not available, the
            device is kept busy for this time.
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
        """Release the device; otherwise it continues after `LONGEST_US`."""
        if self._word is not None:
            self._word.value = self._ticket.value

    def _launch(self, device: str, stream: int) -> bool:
        found = self._kernels.get(device) or self._prepare(device)
        if found is None:
            return False
        kernel, blocks, word = found
        self._ticket.value += 1  # wraps around after 2**32 calls
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
        """Return the device address of the number that the host writes."""
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


class EventUser:
    """Base class of what uses torch's events; all functions are looked up in the constructor."""

    def __init__(self) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._record: Any = torch.cuda.Event.record
        self._await: Any = torch.cuda.Event.synchronize
        self._is_over: Any = torch.cuda.Event.query
        self._elapsed: Any = torch.cuda.Event.elapsed_time


# The cost of a pair of CUDA events, measured so that timers can subtract it.
#
# The time between two events around a kernel consists of the kernel and the gaps before and after
# it: 2 to 4 µs on H200s, independent of the kernel and its duration. A kernel that ends after a
# known time by the device's own clock reveals the gaps.
#
# This is measured in the solution's process, which could manipulate it to subtract too much. The
# result is therefore bounded, and manipulation cannot gain more than the bound.


MOST_MS = 0.005
"""Maximum amount subtracted from a sample, in milliseconds: pairs cost 2.1 to 4 µs on H200s."""

LEAST_MS = 0.0005
"""Minimum of a reduced sample: the time that timers report for an empty call."""

_SPIN_NS = 4000
# Extra time from start to end of a kernel that watches the clock: 0.54 to 0.62 µs for 2 to 2000 µs,
# according to CUPTI records on an H200.
_ENDS_MS = 0.00057
# The clock ticks every 32 ns on new devices, but every microsecond on many others, which is too
# coarse.
_COARSE_NS = 250
_SETTLING, _PAIRS, _TICKS = 3, 15, 5
_ENQUEUED_US = 50.0  # two events and a kernel
_SIZE = ctypes.c_size_t(8)


class PairCost(EventUser):
    """The cost of event pairs on each device; looks up everything it needs in the constructor.

    Attributes
    ----------
    removed_ms : float
        Amount that `take_out` subtracts, in milliseconds: 0 before a device has been measured, and
        if that is not possible.
    """

    def __init__(self) -> None:
        super().__init__()
        self._driver: Any = cuda_driver()
        self._found: dict[str, Optional[float]] = {}
        self._device = ""

    @property
    def removed_ms(self) -> float:
        """Amount subtracted from samples of the most recently chosen device."""
        return self._found.get(self._device) or 0.0

    @property
    def known(self) -> bool:
        """Whether the cost has been measured."""
        return self._found.get(self._device) is not None

    def choose(self, device: str, stream: Any, hold: DeviceHold) -> None:
        """Use the cost of pairs on `device` from now on, and measure it if necessary.

        Parameters
        ----------
        device : str
            The current device, which must be idle.
        stream : torch.cuda.Stream
            The current stream.
        hold : DeviceHold
            Occupies the device while a pair is enqueued.
        """
        self._device = device
        if device not in self._found:
            self._found[device] = self._measured(device, stream, hold)

    def take_out(self, sample_ms: float) -> float:
        """Return a sample minus the cost, but at least `LEAST_MS` if it was larger before."""
        return max(sample_ms - self.removed_ms, min(sample_ms, LEAST_MS))

    def _measured(self, device: str, stream: Any, hold: DeviceHold) -> Optional[float]:
        """Return the cost in milliseconds; None if it cannot be measured on this device."""
        if self._driver is None:
            return None
        kernel = Kernel(self._driver, SPIN, b"spin")
        if kernel.error or not self._tick_ns(kernel, stream.cuda_stream) <= _COARSE_NS:
            return None
        found = []
        for _ in range(_SETTLING + _PAIRS):
            pair = self._pair(kernel, device, stream, hold)
            if pair is None:
                return None
            found.append(pair)
        cost = median(found[_SETTLING:]) - _SPIN_NS / 1e6 - _ENDS_MS
        return min(max(cost, 0.0), MOST_MS)

    def _pair(self, kernel: Kernel, device: str, stream: Any, hold: DeviceHold) -> Optional[float]:
        """Return the milliseconds between two events around the kernel."""
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        hold.enqueue(_ENQUEUED_US, device, stream.cuda_stream)
        try:
            self._record(start, stream)
            refused = _spin(kernel, stream.cuda_stream, _SPIN_NS)
            self._record(stop, stream)
        finally:
            hold.release()
        self._await(stop)
        # If the device could not be filled, the host may have been too slow.
        return float(self._elapsed(start, stop)) if hold.fills and not refused else None

    def _tick_ns(self, kernel: Kernel, stream: int) -> float:
        """Return the tick of the device's clock in nanoseconds; NaN if unknown."""
        driver, place, told = self._driver, ctypes.c_uint64(), ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(place), _SIZE) != 0:
            return float("nan")
        ticks = []
        for _ in range(_TICKS):
            # The kernel waits for the clock to change: by one tick, or several.
            if (
                _spin(kernel, stream, 1, place.value)
                or driver.cuStreamSynchronize(ctypes.c_void_p(stream))
                or driver.cuMemcpyDtoH_v2(ctypes.byref(told), place, _SIZE)
            ):
                break
            ticks.append(told.value)
        driver.cuMemFree_v2(place)
        return min(ticks) if len(ticks) == _TICKS else float("nan")


def _spin(kernel: Kernel, stream: int, nanoseconds: int, place: int = 0) -> int:
    return kernel.launch(stream, ctypes.c_uint64(nanoseconds), ctypes.c_uint64(place))


class ContextEvent(EventUser):
    """An event for all work that was enqueued on a device before it was recorded.

    Ordinary events belong to one stream. The driver supports events of a whole context since CUDA
    12.5.

    Attributes
    ----------
    works : bool
        False once it is known that the driver has no such events.
    """

    def __init__(self) -> None:
        super().__init__()
        driver = cuda_driver()
        self._current: Any = getattr(driver, "cuCtxGetCurrent", None)
        self._record_all: Any = getattr(driver, "cuCtxRecordEvent", None)
        self.works = self._record_all is not None
        self._events: dict[tuple[str, str], Any] = {}
        self._recorded: Optional[Any] = None

    def record(self, device: str) -> None:
        """Record the event for the context of `device`, which is the current one."""
        event = self._of(device, "end")
        self._recorded = event if self._record_in_context(event) else None

    def finish(self, device: str) -> bool:
        """Wait until all previously enqueued work is done, without recording another event.

        Polls instead of sleeping, so that the waiting time is that of the device: an idle one takes
        a few microseconds.

        Returns
        -------
        bool
            False if the driver does not support this; the function has not waited then.
        """
        event = self._of(device, "rest")
        if not self._record_in_context(event):
            return False
        while not self._is_over(event):
            pass
        return True

    def _record_in_context(self, event: Any) -> bool:
        if not self.works:
            return False
        context = ctypes.c_void_p()
        self.works = (
            self._current(ctypes.byref(context)) == 0
            and self._record_all(context, ctypes.c_void_p(event.cuda_event)) == 0
        )
        return self.works

    def _of(self, device: str, use: str) -> Any:
        key = device, use
        if key not in self._events:
            self._events[key] = event = self._event(enable_timing=True)
            self._record(event)  # torch creates an event when it is first recorded
        return self._events[key]

    def milliseconds_since(self, start: Any) -> Optional[float]:
        """Wait for the event; return the time since another event, None if it was not recorded."""
        if self._recorded is None:
            return None
        self._await(self._recorded)
        return float(self._elapsed(start, self._recorded))

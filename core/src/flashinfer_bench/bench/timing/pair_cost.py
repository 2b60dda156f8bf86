"""What a pair of CUDA events costs by itself, measured so that timers can take it out.

Between two events around a kernel lie the kernel, and the way from the first event to it and from
it to the second: 2 to 3 µs on an H200, whatever the kernel is and however long it takes. A kernel
that ends after a number of nanoseconds by the device's own clock shows how much that is.

It is measured in the process of the solution, which could see to it that too much comes out. So it
is bounded, and no more can be gained by that than the bound allows.
"""

from __future__ import annotations

import ctypes
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.timing.hold import cuda_driver

if TYPE_CHECKING:
    from flashinfer_bench.bench.timing.hold import DeviceHold

MOST_MS = 0.003
"""More than this is never taken out of a sample, in milliseconds."""

LEAST_MS = 0.0005
"""No sample becomes less than this: what a call of nothing takes, as timers show it."""

_SPIN_NS = 4000
# A kernel that watches the clock for some time takes so much longer from its start to its end:
# 0.54 to 0.62 µs for 2 to 2000 µs, by the records of CUPTI on an H200.
_ENDS_MS = 0.00057
# The clock ticks every 32 ns on new devices, and every microsecond on many others, which is too
# coarse.
_COARSE_NS = 250
_SETTLING, _PAIRS, _TICKS = 3, 15, 5
_ENQUEUED_US = 50.0  # two events and a kernel
_SIZE = ctypes.c_size_t(8)
_PTX = b"""
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


class PairCost:
    """The cost of pairs of events on each device; looks up all that it needs when it is made.

    Attributes
    ----------
    removed_ms : float
        What `take_out` takes out, in milliseconds: 0 before a device has been measured, and where
        that is not possible.
    """

    def __init__(self) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._record: Any = torch.cuda.Event.record
        self._await: Any = torch.cuda.Event.synchronize
        self._elapsed: Any = torch.cuda.Event.elapsed_time
        self._driver: Any = cuda_driver()
        self._found: dict[str, Optional[float]] = {}
        self._device = ""

    @property
    def removed_ms(self) -> float:
        """What is taken out of samples of the device that was last chosen."""
        return self._found.get(self._device) or 0.0

    @property
    def known(self) -> bool:
        """Whether that has been measured."""
        return self._found.get(self._device) is not None

    def choose(self, device: str, stream: Any, hold: DeviceHold) -> None:
        """Take out what pairs cost on `device` from now on; measure that if it is not known.

        Parameters
        ----------
        device : str
            The current device, which has nothing to do.
        stream : torch.cuda.Stream
            The current stream.
        hold : DeviceHold
            What occupies the device while a pair is enqueued.
        """
        self._device = device
        if device not in self._found:
            self._found[device] = self._measured(device, stream, hold)

    def take_out(self, sample_ms: float) -> float:
        """Return a sample without the cost, but no less than `LEAST_MS` if it was more."""
        return max(sample_ms - self.removed_ms, min(sample_ms, LEAST_MS))

    def _measured(self, device: str, stream: Any, hold: DeviceHold) -> Optional[float]:
        """Return milliseconds; None if they cannot be told on this device."""
        if self._driver is None:
            return None
        kernel = _Spin.loaded(self._driver, stream)
        if kernel is None or not kernel.tick_ns() <= _COARSE_NS:
            return None
        found = []
        for _ in range(_SETTLING + _PAIRS):
            pair = self._pair(kernel, device, stream, hold)
            if pair is None:
                return None
            found.append(pair)
        cost = median(found[_SETTLING:]) - _SPIN_NS / 1e6 - _ENDS_MS
        return min(max(cost, 0.0), MOST_MS)

    def _pair(self, kernel: _Spin, device: str, stream: Any, hold: DeviceHold) -> Optional[float]:
        """Return the milliseconds between two events around the kernel."""
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        hold.enqueue(_ENQUEUED_US, device, stream.cuda_stream)
        try:
            self._record(start, stream)
            launched = kernel.launch(_SPIN_NS)
            self._record(stop, stream)
        finally:
            hold.release()
        self._await(stop)
        # On a device that could not be filled, the host may have been too slow.
        return float(self._elapsed(start, stop)) if launched and hold.fills else None


class _Spin:
    """A kernel of one thread that ends after a number of nanoseconds, on one stream."""

    def __init__(self, driver: Any, function: ctypes.c_void_p, stream: Any) -> None:
        self._driver, self._function = driver, function
        self._stream = ctypes.c_void_p(stream.cuda_stream)

    @classmethod
    def loaded(cls, driver: Any, stream: Any) -> Optional[_Spin]:
        """Have the driver compile it for the current context; None if it does not."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        if driver.cuModuleLoadData(ctypes.byref(module), _PTX) != 0:
            return None
        if driver.cuModuleGetFunction(ctypes.byref(function), module, b"spin") != 0:
            return None
        return cls(driver, function, stream)

    def launch(self, nanoseconds: int, place: int = 0) -> bool:
        """Enqueue it; it stores at `place` of the device's memory how long it took."""
        given = ctypes.c_uint64(nanoseconds), ctypes.c_uint64(place)
        values = (ctypes.c_void_p * 2)(*map(ctypes.addressof, given))
        launch = self._driver.cuLaunchKernel
        return bool(launch(self._function, 1, 1, 1, 1, 1, 1, 0, self._stream, values, None) == 0)

    def tick_ns(self) -> float:
        """Return how many nanoseconds a tick of the device's clock is; NaN if that is not known."""
        place, told = ctypes.c_uint64(), ctypes.c_uint64()
        if self._driver.cuMemAlloc_v2(ctypes.byref(place), _SIZE) != 0:
            return float("nan")
        ticks = []
        for _ in range(_TICKS):
            # It looks for a change of the clock: what it sees is a tick, or several.
            if not self.launch(1, place.value) or self._copied(told, place) != 0:
                break
            ticks.append(told.value)
        self._driver.cuMemFree_v2(place)
        return min(ticks) if len(ticks) == _TICKS else float("nan")

    def _copied(self, told: ctypes.c_uint64, place: ctypes.c_uint64) -> int:
        """Fetch what was stored, after it was; return the driver's error code."""
        code = self._driver.cuStreamSynchronize(self._stream)
        return int(code or self._driver.cuMemcpyDtoH_v2(ctypes.byref(told), place, _SIZE))

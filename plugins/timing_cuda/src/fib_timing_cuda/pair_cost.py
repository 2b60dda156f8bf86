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

from fib_timing_cuda.driver import SPIN, Kernel, cuda_driver

if TYPE_CHECKING:
    from fib_timing_cuda.hold import DeviceHold

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
        # On a device that could not be filled, the host may have been too slow.
        return float(self._elapsed(start, stop)) if hold.fills and not refused else None

    def _tick_ns(self, kernel: Kernel, stream: int) -> float:
        """Return how many nanoseconds a tick of the device's clock is; NaN if that is not known."""
        driver, place, told = self._driver, ctypes.c_uint64(), ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(place), _SIZE) != 0:
            return float("nan")
        ticks = []
        for _ in range(_TICKS):
            # It looks for a change of the clock: what it sees is a tick, or several.
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

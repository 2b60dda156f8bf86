"""Work of known length, and constant work, for checking timers.

Neither depends on torch's kernels. On a GPU both are single-thread kernels that the driver
compiles; they are enqueued on the current stream, so they can also be captured.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from fib_timing_cuda.driver import SPIN, Kernel, cuda_driver
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable

_STEADY_MS = 1.0
_FIRST_STEPS = 10_000  # to find out how long one takes
# Ends after a number of dependent multiplications, however long they take.
STEPS = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry steps(.param .u64 count)
{
    .reg .pred %more, %never;
    .reg .b64 %left, %value;
    ld.param.u64 %left, [count];
    mov.u64 %value, %left;
again:
    mul.lo.u64 %value, %value, 6364136223846793005;
    add.u64 %value, %value, 1442695040888963407;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra again;
    setp.eq.u64 %never, %value, 0;
    @%never trap;
    ret;
}
\0"""


class KnownWork(ABC):
    """Work for one device.

    Attributes
    ----------
    grain_us : float
        Maximum excess of `spin` over the requested time, in microseconds.
    """

    grain_us: float = 0.0

    @abstractmethod
    def spin(self, microseconds: float) -> Callable[[], object]:
        """Return a function that keeps the device busy for that long, by the device's own clock."""

    @abstractmethod
    def steps(self, count: int) -> Callable[[], object]:
        """Return a function with so many equal steps of work."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the device has done all work; raise if it no longer responds."""

    def steady(self) -> Callable[[], object]:
        """Return a function with constant work that takes about a millisecond."""
        work, seconds = self.steps(_FIRST_STEPS), []
        for _ in range(5):
            start = time.perf_counter()
            work()
            self.wait()
            seconds.append(time.perf_counter() - start)
        return self.steps(max(1, int(_FIRST_STEPS * _STEADY_MS / 1e3 / max(min(seconds), 1e-9))))


class CpuWork(KnownWork):
    """Loops in Python."""

    grain_us = 1.0  # a call and one loop iteration: 0.2 µs on an idle machine

    def spin(self, microseconds: float) -> Callable[[], object]:
        """Read the clock until the time has passed."""
        clock, nanoseconds = time.perf_counter_ns, int(microseconds * 1e3)

        def work() -> None:
            end = clock() + nanoseconds
            while clock() < end:
                pass

        return work

    def steps(self, count: int) -> Callable[[], object]:
        """Add up numbers."""
        return lambda: sum(range(count))

    def wait(self) -> None:
        """Return: calls have done their work."""


class CudaWork(KnownWork):
    """Single-thread kernels, to be launched while the device is current.

    Parameters
    ----------
    device : str
        ``cuda:N``.

    Raises
    ------
    CapabilityError
        If the driver does not compile them.
    """

    grain_us = 2.0  # one clock tick, 1 µs on many devices, and the kernel launch

    def __init__(self, device: str) -> None:
        import torch

        self._device, self._cuda = device, torch.cuda
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # creates the context for the kernels
            self._spin, self._steps = _load(SPIN, b"spin"), _load(STEPS, b"steps")

    def spin(self, microseconds: float) -> Callable[[], object]:
        """Launch a kernel that polls the device's clock until the time has passed."""
        return self._launcher(self._spin, int(microseconds * 1e3))

    def steps(self, count: int) -> Callable[[], object]:
        """Launch a kernel of dependent multiplications."""
        return self._launcher(self._steps, count)

    def wait(self) -> None:
        """Synchronise the device."""
        self._cuda.synchronize(self._device)

    def steady(self) -> Callable[[], object]:
        """Return a kernel of dependent multiplications that takes about a millisecond."""
        with self._cuda.device(self._device):  # the kernels exist only in its context
            return super().steady()

    def _launcher(self, kernel: Kernel, count: int) -> Callable[[], object]:
        given, place = ctypes.c_uint64(max(count, 1)), ctypes.c_uint64(0)

        def work() -> None:
            stream = self._cuda.current_stream(self._device).cuda_stream
            code = kernel.launch(stream, given, place)
            if code != 0:
                raise CapabilityError(f"{self._device}: the driver refused a kernel: error {code}")

        return work


def work_for(device: str) -> KnownWork:
    """Return the work for a device.

    Raises
    ------
    CapabilityError
        If the device is not supported, or the work cannot be created here.
    """
    kind = device.partition(":")[0]
    if kind == "cpu":
        return CpuWork()
    if kind == "cuda":
        return CudaWork(device)
    raise CapabilityError(f"no work of known length for {device!r}; use cpu or cuda:N")


def _load(ptx: bytes, name: bytes) -> Kernel:
    driver = cuda_driver()
    if driver is None:
        raise CapabilityError("libcuda.so.1, the CUDA driver, cannot be loaded")
    kernel = Kernel(driver, ptx, name)
    if kernel.error:
        raise CapabilityError(f"the CUDA driver cannot compile a kernel: error {kernel.error}")
    return kernel

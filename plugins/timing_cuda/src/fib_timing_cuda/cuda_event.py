"""Timer with a pair of CUDA events around each call, and a check for work after the second."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from fib_timing_cuda.driver import LONGEST_US, ContextEvent, DeviceHold, EventUser, PairCost
from flashinfer_bench.bench.timing.base import Timer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.timing.base import EnqueuedCall

_FIRST_US = 200.0  # initial estimate of the time to enqueue a call
_MARGIN = 1.25  # allows for variation
# The end of a stream and that of the context are about 1.5 µs apart if nothing else runs.
_NOTICEABLE_REST_MS = 0.004
# Synchronising an idle device takes 6 µs, and nearly always less than 20; with a tool that records
# the process, 30 and nearly always less than 100.
_NOTICEABLE_TAIL_S = 50e-6
_LONG_SYNCHRONISING_S = 250e-6

_TAIL = "the device was busy beyond the end of the timed stream; that time is in the latency"
_GAPS = (
    "enqueuing took longer than the device is held: the latency may include waiting for the host"
)
_NOT_FILLED = "the device could not be filled while enqueuing: work on other streams may be missed"
_NOT_REMOVED = "the cost of a pair of events could not be measured here: it is in the latency"


class EventTimer(EventUser, Timer):
    """Base class of timers with event pairs; all functions are looked up in the constructor."""

    resolution_ms = 5e-4

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._synchronize, self._on_device = torch.cuda.synchronize, torch.cuda.device
        self._stream: Any = torch.cuda.current_stream
        self._hold = DeviceHold()
        self._cost = PairCost()
        self._notes: dict[str, None] = {}

    @property
    def removed_ms(self) -> float:
        """Amount subtracted from each sample on the last device, in milliseconds."""
        return self._cost.removed_ms

    def take_notes(self) -> list[str]:
        """Return and clear the remarks; see `Timer.take_notes`."""
        notes, self._notes = list(self._notes), {}
        return notes

    def _latency(self, sample: float) -> float:
        """Return the latency for a time between two events."""
        if not self._cost.known:
            self._notes[_NOT_REMOVED] = None
        if not (math.isfinite(sample) and sample >= 0):
            raise TimingError(f"CUDA events reported a latency of {sample} ms")
        return self._cost.take_out(sample)


class CudaEventTimer(EventTimer):
    """Records an event before and after each call, on the stream that is current before it.

    The device is kept busy while the call is enqueued, up to 1 ms, so that it does not wait for the
    host. The cost of a pair of events is measured on each device before its first call, and
    subtracted. Work on other streams counts until it has finished. If the driver supports it, this
    is measured with an event of the whole context; otherwise by how long synchronising the device
    takes after the second event.
    """

    name = "cuda_event"
    version = "6"
    enqueues = True

    def __init__(self) -> None:
        super().__init__()
        self._clock = time.perf_counter
        self._everything = ContextEvent()
        self._enqueued_us = _FIRST_US

    def prepare(self, device: str) -> None:
        """Measure the cost of event pairs on an idle device; otherwise the first call does so."""
        with self._on_device(device):
            self._cost.choose(device, self._stream(device), self._hold)

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time one call; see `Timer.time_call`."""
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        with self._on_device(device):
            # A call may change the current stream.
            stream = self._stream(device)
            self._cost.choose(device, stream, self._hold)
            self._hold.enqueue(self._enqueued_us * _MARGIN, device, stream.cuda_stream)
            begun = self._clock()
            try:
                self._record(start, stream)
                result = function(*arguments)
                self._record(stop, stream)
                self._everything.record(device)
            finally:
                self._hold.release()
            self._see(self._clock() - begun)
            self._await(stop)
            sample = self._until_the_end(start, self._elapsed(start, stop), device)
        return self._latency(sample), result

    def enqueue_calls(
        self, calls: Sequence[EnqueuedCall], *, device: str
    ) -> Callable[[], list[float]]:
        """Enqueue calls; see `Timer.enqueue_calls`.

        Work that a call leaves on other streams is not in its latency: an event of the whole
        context would keep other processes from a waiting device for milliseconds.
        """
        pairs = [(self._event(enable_timing=True), self._event(enable_timing=True)) for _ in calls]
        with self._on_device(device):
            for (start, stop), call in zip(pairs, calls, strict=True):
                call.before()
                stream = self._stream(device)
                self._record(start, stream)
                result = call.function()
                self._record(stop, stream)
                call.after(result)

        return lambda: [self._latency(self._elapsed(start, stop)) for start, stop in pairs]

    def _see(self, enqueued_s: float) -> None:
        """Update the estimate with the time the call took to enqueue."""
        self._enqueued_us = min(enqueued_s * 1e6, LONGEST_US)
        if not self._hold.fills:
            self._notes[_NOT_FILLED] = None
        elif self._enqueued_us == LONGEST_US:
            self._notes[_GAPS] = None

    def _until_the_end(self, start: Any, sample: float, device: str) -> float:
        """Wait for the whole device; return `sample`, or more if other streams took longer."""
        total = self._everything.milliseconds_since(start)
        tail_s = self._tail_s(device)
        if total is not None and total - sample > _NOTICEABLE_REST_MS:
            self._notes[_TAIL] = None
            sample = total
        if tail_s:
            self._notes[_TAIL] = None
            sample += tail_s * 1e3
        return sample

    def _tail_s(self, device: str) -> float:
        """Wait for the whole device; return the duration in seconds, 0 if it was idle."""
        begun = self._clock()
        told = self._everything.finish(device)
        finished = self._clock()
        self._synchronize()
        synchronised = self._clock()
        if synchronised - finished > (_LONG_SYNCHRONISING_S if told else _NOTICEABLE_TAIL_S):
            return synchronised - begun
        return finished - begun if finished - begun > _NOTICEABLE_TAIL_S else 0.0

"""Latencies from the device's own records of what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fib_timing_cuda.cuda_event import CudaEventTimer
from fib_timing_cuda.cupti.recorder import Recorder
from fib_timing_cuda.cupti.span import Activity, span_of, split_at_hold
from fib_timing_cuda.pair_cost import LEAST_MS
from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable

# From one event to the first activity, and from the last to the other event: 2.0 to 3.5 µs on an
# H200, and 6.4 where a graph has to be started.
_EVENTS_MS = 0.005
_GRAPH_MS = 0.009
# A call that leaves no record has the time of two events, unless it works elsewhere.
_ELSEWHERE_MS = 1.0
_NOTICEABLE_IDLENESS = 0.10

# Without figures: a trace keeps each remark once, whatever the number of calls.
_NOTHING = "no kernel, copy or fill was recorded: the latency is that of two events with no work"
_UNSEEN = (
    "the time by events was longer than from the first recorded activity to the last: it is given "
    "instead"
)
_IDLE = "the device was idle for over a tenth of the time from a call's first activity to its last"


class CuptiTimer(Timer):
    """Times from the start of a call's first activity to the end of its last, on all streams.

    The call is made by the timer of CUDA events, which holds the device while work is enqueued. Its
    figure is an upper bound, so a call cannot be quicker by what CUPTI is kept from seeing: where
    both differ by more than events ever take, that of the events is given.
    """

    name = "cupti"
    version = "2"
    resolution_ms = 1e-6

    def __init__(self) -> None:
        import torch

        self._synchronize = torch.cuda.synchronize
        self._events = CudaEventTimer()
        self._recorder = Recorder()
        self._notes: dict[str, None] = {}

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Time one call; see `Timer.time_call`."""
        self._recorder.start()
        self._events.prepare(device)
        # What went on before is complete then, and cannot come with the records of this call.
        self._synchronize(device)
        self._recorder.discard()
        by_events, result = self._events.time_call(function, arguments, device=device)
        return self._latency(self._recorder.collect(), by_events), result

    def take_notes(self) -> list[str]:
        """Return and forget the remarks; see `Timer.take_notes`."""
        notes, self._notes = [*self._events.take_notes(), *self._notes], {}
        return notes

    def _latency(self, activities: list[Activity], by_events: float) -> float:
        released, others = split_at_hold(activities)
        span = span_of(others, not_before=released)
        if span is None:
            return self._without_activity(by_events)
        starts_graph = min(others, key=lambda activity: activity.start).graph != 0
        # Its own cost has been taken out of the time by events, as far as that is known.
        unseen = by_events + self._events.removed_ms - span.milliseconds
        if unseen > (_GRAPH_MS if starts_graph else _EVENTS_MS):
            self._notes[_UNSEEN] = None
            return by_events
        if span.idle_share > _NOTICEABLE_IDLENESS:
            self._notes[_IDLE] = None
        return max(span.milliseconds, LEAST_MS)

    def _without_activity(self, by_events: float) -> float:
        """Return the latency of a call that has done nothing on the device."""
        if by_events > _ELSEWHERE_MS:
            raise TimingError(
                "CUPTI has recorded no kernel, copy or fill of a call that took "
                f"{by_events * 1e3:.0f} µs by CUDA events",
                hint="a function that works on the CPU, or switches recording off, can be timed "
                "with --timer cuda_event",
            )
        self._notes[_NOTHING] = None
        return by_events

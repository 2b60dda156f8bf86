"""Timer that captures a call as a CUDA graph and times its replay, excluding host launches."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Optional

from fib_timing_cuda.cuda_event import EventTimer
from flashinfer_bench.errors import TimingError

if TYPE_CHECKING:
    from collections.abc import Callable

_ENQUEUED_US = 100.0  # generous estimate for two events and a graph
_EMPTY = "nothing was captured: the call launched no work on the current stream"
_NOT_FILLED = "the device could not be filled while the graph was enqueued"
_HINT = "use --timer cuda_event, which calls a solution directly"
# Each creates or deletes something that capture does not allow, or waits for the device.
_CAUSES = "it may wait for the device, copy to or from it, or use its own stream"


class CudaGraphTimer(EventTimer):
    """Captures the call, and records an event before and after the single replay of the graph.

    The function runs once, on the host; its launches run once, in the replay, whose outputs are the
    result. Effects on the device that a graph does not record are not part of the latency, nor is
    the cost of a pair of events; the start of the graph is.
    """

    name = "cuda_graph"
    version = "3"

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._new_stream: Any = torch.cuda.Stream
        self._use_stream: Any = torch.cuda.stream
        self._new_graph: Any = torch.cuda.CUDAGraph
        self._streams: dict[str, Any] = {}
        self._last: Any = None

    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Capture and replay one call; see `Timer.time_call`.

        Raises
        ------
        TimingError
            If the call cannot be captured.
        """
        with self._on_device(device):
            graph, result = self._capture(function, arguments, device)
            sample = self._replay(graph, device)
        self._last = graph  # keeps the memory of the outputs; frees the previous graph
        return self._latency(sample), result

    def _capture(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], device: str
    ) -> tuple[Any, Any]:
        """Return the graph, and the result of the function."""
        if device not in self._streams:
            self._streams[device] = self._new_stream(device)
        self._synchronize()
        graph = self._new_graph()
        with self._use_stream(self._streams[device]):
            graph.capture_begin()
            try:
                result = function(*arguments)
            except Exception as error:  # any error: the capture must end first
                invalid, _ = _end_of_capture(graph)
                # An invalid capture is the most likely reason for the error.
                if invalid is not None or "captur" in str(error).lower():
                    raise _not_captured(error) from error
                raise
            invalid, warned = _end_of_capture(graph)
        if invalid is not None:
            raise _not_captured(invalid) from invalid
        if any("empty" in text for text in warned):
            self._notes[_EMPTY] = None
        return graph, result

    def _replay(self, graph: Any, device: str) -> float:
        """Return the duration of one replay in milliseconds."""
        start, stop = self._event(enable_timing=True), self._event(enable_timing=True)
        stream = self._stream(device)
        self._cost.choose(device, stream, self._hold)
        self._hold.enqueue(_ENQUEUED_US, device, stream.cuda_stream)
        try:
            self._record(start, stream)
            graph.replay()
            self._record(stop, stream)
        finally:
            self._hold.release()
        self._synchronize()
        if not self._hold.fills:
            self._notes[_NOT_FILLED] = None
        return float(self._elapsed(start, stop))


def _end_of_capture(graph: Any) -> tuple[Optional[RuntimeError], list[str]]:
    """End a capture; return the error if it is invalid, and warnings, as of an empty graph."""
    invalid = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            graph.capture_end()
        except RuntimeError as error:
            invalid = error
    return invalid, [str(warning.message) for warning in warned]


def _not_captured(error: Exception) -> TimingError:
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return TimingError(
        f"the call cannot be captured as a CUDA graph: {first}; {_CAUSES}", hint=_HINT
    )

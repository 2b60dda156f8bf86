"""An event that waits for all streams of a device's context, however many there are."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from fib_timing_cuda.driver import cuda_driver


class ContextEvent:
    """Happens when everything has finished that was enqueued before it was recorded.

    An ordinary event belongs to one stream. The driver has had events of a whole context since
    CUDA 12.5. All functions are looked up when this is made.

    Attributes
    ----------
    works : bool
        False once it is known that the driver has no such events.
    """

    def __init__(self) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._record: Any = torch.cuda.Event.record
        self._await: Any = torch.cuda.Event.synchronize
        self._is_over: Any = torch.cuda.Event.query
        self._elapsed: Any = torch.cuda.Event.elapsed_time
        driver = cuda_driver()
        self._current: Any = getattr(driver, "cuCtxGetCurrent", None)
        self._record_all: Any = getattr(driver, "cuCtxRecordEvent", None)
        self.works = self._record_all is not None
        self._events: dict[tuple[str, str], Any] = {}
        self._recorded: Optional[Any] = None

    def record(self, device: str) -> None:
        """Record it for the context of `device`, which is the current one."""
        event = self._of(device, "end")
        self._recorded = event if self._record_in_context(event) else None

    def finish(self, device: str) -> bool:
        """Wait until everything is done that was enqueued before this; nothing else is recorded.

        It asks again and again instead of sleeping, so that the time until it returns is that of
        the device: an idle one takes some microseconds.

        Returns
        -------
        bool
            False if the driver cannot tell; then it has not waited.
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
            self._record(event)  # torch makes an event when it is first recorded
        return self._events[key]

    def milliseconds_since(self, start: Any) -> Optional[float]:
        """Wait for it; return the time since another event, None if it could not be recorded."""
        if self._recorded is None:
            return None
        self._await(self._recorded)
        return float(self._elapsed(start, self._recorded))

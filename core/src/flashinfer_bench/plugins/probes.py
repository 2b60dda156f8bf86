"""Asking a probe whether its code can be used here, without trusting it to answer.

A probe is code of a plugin: it may raise, call ``sys.exit``, answer nonsense, or never return. It
runs in a daemon thread with a time limit, so it can delay neither discovery, which runs no probe,
nor the end of the process, which waits for no daemon thread.
"""

from __future__ import annotations

import threading
import time
from typing import Optional

from flashinfer_bench._lazy import import_string
from flashinfer_bench.plugins._messages import one_line
from flashinfer_bench.plugins.records import Availability


class Probe:
    """One probe function, run at most once; its first answer stays.

    Parameters
    ----------
    path : str
        ``"package.module:function"``.
    timeout_s : float
        Seconds, import of the module included, after which the answer is no.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.failure: Optional[BaseException] = None
        """What the probe raised, if it has been asked and did; being too slow is no failure."""
        self.is_late = False
        """Whether it took too long to answer: then nobody knows what it would have said."""
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._thread: Optional[threading.Thread] = None
        self._answer: Optional[Availability] = None

    def start(self) -> None:
        """Start the probe if it has not been, without waiting for it."""
        with self._lock:
            if self._thread is not None or self._answer is not None:
                return
            self._deadline = time.monotonic() + self.timeout_s
            thread = threading.Thread(target=self._run, name=f"probe {self.path}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:  # no thread left, or the interpreter is ending
                self._answer = Availability(False, f"the probe could not be started: {error}")

    def answer(self) -> Availability:
        """Return the answer, waiting for it until the time limit; never raises.

        Returns
        -------
        Availability
            What the probe said, or why it could not be asked.
        """
        self.start()
        if self._thread is not None:  # joined, so that a process that forks next has one thread
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            if self._answer is None:
                self.is_late = True
                self._answer = Availability(
                    False,
                    f"the probe {self.path} did not answer within {self.timeout_s:g} s",
                    "FIB_PROBE_TIMEOUT_S sets the limit",
                )
            return self._answer

    def _run(self) -> None:
        failure: Optional[BaseException] = None
        try:
            found = import_string(self.path)()
            if not isinstance(found, Availability):
                raise TypeError(f"it returned {type(found).__name__}, not Availability")
        except BaseException as error:  # noqa: BLE001 - the plugin's code, in a thread of its own
            failure = error
            found = Availability(False, f"the probe {self.path} failed: {one_line(error)}")
        with self._lock:
            if self._answer is None:  # else it is too late: an answer does not change
                self._answer, self.failure = found, failure

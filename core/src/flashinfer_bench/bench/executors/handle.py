"""The judge's hold on a process, however it was started."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from flashinfer_bench.bench.transport.deadline import Deadline

# How often to look where the system has no way to tell.
_LOOK_S = 0.02


class ProcessHandle(ABC):
    """A process that can be watched and killed.

    Attributes
    ----------
    pid : int
        Its number; it leads a process group and a session.
    exit_code : int or None
        Negative for a signal; None while it runs, and when nobody knows.
    """

    pid: int
    exit_code: Optional[int] = None

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when `ended` is worth asking; -1 if none is."""

    @abstractmethod
    def ended(self) -> bool:
        """Return whether the process has ended, without waiting."""

    @abstractmethod
    def kill(self) -> None:
        """Have the whole process group killed, without waiting; from any thread, never raises."""

    @abstractmethod
    def close(self) -> None:
        """Give up what the handle holds, after the process has ended; never raises."""

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the process has ended.

        Parameters
        ----------
        deadline : Deadline
            When to stop waiting.

        Returns
        -------
        bool
            Whether it has.
        """
        while not self.ended():
            if deadline.expired:
                return False
            poller = select.poll()
            if self.fileno() >= 0:
                poller.register(self.fileno(), select.POLLIN)
                poller.poll(deadline.poll_ms())
            else:
                poller.poll(deadline.poll_ms(_LOOK_S))
        return True

    @property
    def look_s(self) -> float:
        """Seconds after which to ask `ended` again although no descriptor has called for it."""
        return float("inf") if self.fileno() >= 0 else _LOOK_S

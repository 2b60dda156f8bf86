"""Waiting for a device to be fast again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Recovery:
    """How long to wait after throttling was seen.

    The first pause is that of nvbench (``--throttle-recovery-delay``). The limits see to it that a
    device which never recovers is timed all the same.

    Attributes
    ----------
    pause_s : float
        Seconds of the first pause; each further one is twice as long.
    longest_s : float
        Seconds to wait at one time.
    total_s : float
        Seconds to wait during one timing.
    """

    pause_s: float = 0.05
    longest_s: float = 2.0
    total_s: float = 10.0


class Patience:
    """Waits as `Recovery` allows; after having waited in vain once, not again.

    Parameters
    ----------
    recovery : Recovery
        The limits.
    sleep : callable
        Waits for a number of seconds.

    Attributes
    ----------
    waited_s : float
        Seconds waited so far.
    in_vain : bool
        Whether the device was still slow after the longest wait.
    """

    def __init__(self, recovery: Recovery, sleep: Callable[[float], None] = time.sleep) -> None:
        self._recovery = recovery
        self._sleep = sleep
        self.waited_s = 0.0
        self.in_vain = False

    def wait(self, is_slow: Callable[[], bool]) -> float:
        """Wait until the device is no longer slow, or the time for it is over.

        Parameters
        ----------
        is_slow : callable
            Looks at the device again.

        Returns
        -------
        float
            Seconds waited now.
        """
        limit = min(self._recovery.longest_s, self._recovery.total_s - self.waited_s)
        pause, waited, slow = self._recovery.pause_s, 0.0, True
        while slow and not self.in_vain and limit - waited > 0:
            now = min(pause, limit - waited)
            self._sleep(now)
            waited, pause = waited + now, pause * 2
            slow = is_slow()
        self.waited_s += waited
        self.in_vain = slow
        return waited

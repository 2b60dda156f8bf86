"""A budget of wall time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """Seconds that may still be spent; the clock can be stopped while others are waited for.

    Parameters
    ----------
    seconds : float
        The budget.
    clock : callable
        Returns seconds; monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Return the seconds left; negative once the budget is exceeded."""
        return self._end - self._clock()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the time that the body takes."""
        began = self._clock()
        try:
            yield
        finally:
            self._end += self._clock() - began

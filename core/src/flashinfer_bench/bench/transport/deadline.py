"""A point in time that a conversation, or an evaluation, must not pass."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator

# poll() takes milliseconds in a C int; whoever waits longer simply polls again.
_LONGEST_POLL_MS = 2**30


class Deadline:
    """A moment on the monotonic clock, or never.

    Parameters
    ----------
    seconds : float
        How far away it is from now; infinite for never. Zero and less mean that it has passed.
    """

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @classmethod
    def never(cls) -> Deadline:
        """Return a deadline that does not come."""
        return cls(math.inf)

    @property
    def remaining(self) -> float:
        """Seconds left; negative once it has passed."""
        return self._at - time.monotonic()

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining <= 0.0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Put it off by the time that the body of a ``with`` statement takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._at += time.monotonic() - began

    def poll_ms(self, at_most_s: float = math.inf) -> Optional[int]:
        """Return the milliseconds to hand to ``poll``, rounded up; None to wait for ever.

        Parameters
        ----------
        at_most_s : float, optional
            Upper limit in seconds, for a wait that has to look around regularly.
        """
        seconds = max(0.0, min(self.remaining, at_most_s))
        return None if seconds == math.inf else min(math.ceil(seconds * 1000), _LONGEST_POLL_MS)

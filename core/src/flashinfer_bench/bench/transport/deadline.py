"""A point in time that a conversation must not pass."""

from __future__ import annotations

import math
import time
from typing import Optional

# poll() takes milliseconds in a C int; whoever waits longer simply polls again.
_LONGEST_POLL_MS = 2**30


class Deadline:
    """A moment on the monotonic clock, or never.

    Parameters
    ----------
    seconds : float or None
        How far away it is from now; None for never. Zero and less mean that it has passed.
    """

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self._at = math.inf if seconds is None else time.monotonic() + seconds

    @classmethod
    def never(cls) -> Deadline:
        """Return a deadline that does not come."""
        return cls(None)

    @property
    def remaining(self) -> float:
        """Seconds left; infinite for never, 0.0 once it has passed."""
        return max(0.0, self._at - time.monotonic()) if self._at != math.inf else math.inf

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining == 0.0

    def poll_ms(self, at_most_s: float = math.inf) -> Optional[int]:
        """Return the milliseconds to hand to ``poll``, rounded up; None to wait for ever.

        Parameters
        ----------
        at_most_s : float, optional
            Upper limit in seconds, for a wait that has to look around regularly.
        """
        seconds = min(self.remaining, at_most_s)
        if seconds == math.inf:
            return None
        return min(math.ceil(seconds * 1000), _LONGEST_POLL_MS)

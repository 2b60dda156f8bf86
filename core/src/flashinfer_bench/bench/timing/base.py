"""What a timing backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

ArgumentsOf = Callable[[int], tuple[Any, ...]]


class Timer(ABC):
    """One way to measure how long calls take on a device.

    A timer runs in the candidate's process. It is constructed without arguments, and has looked up
    every clock function it needs, before the solution is imported. All timers for a device are
    constructed in every candidate, so this must be quick and must not touch the device.

    Attributes
    ----------
    name : str
        Name under which it is registered; goes into every trace.
    version : str
        Changes whenever its numbers may change.
    """

    name: str = ""
    version: str = "1"

    @abstractmethod
    def measure(
        self,
        function: Callable[..., Any],
        arguments: ArgumentsOf,
        *,
        warmup: int,
        iterations: int,
        device: str,
    ) -> list[float]:
        """Time `iterations` calls of `function`.

        Parameters
        ----------
        function : callable
            What is timed.
        arguments : callable
            ``arguments(i)`` returns the positional arguments of call `i`, counted from 0, warm-up
            calls included. It is called outside the timed region.
        warmup : int
            Calls before the first timed one.
        iterations : int
            Timed calls, at least one.
        device : str
            Where `function` works: ``cpu`` or ``cuda:N``.

        Returns
        -------
        list of float
            Milliseconds of each timed call.

        Raises
        ------
        TimingError
            If a measurement cannot be taken or makes no sense (not finite, negative).
        """

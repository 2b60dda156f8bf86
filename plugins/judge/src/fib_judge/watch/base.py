"""What a watcher of the environment is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Reading:
    """How things are at one moment.

    Attributes
    ----------
    values : mapping of str to float
        What was read, with the unit at the end of each name (``sm_mhz``). A name may be missing
        from some readings. The report has the smallest, the median and the greatest of each.
    throttled : tuple of str
        Why the device is slower now than it could be, or was since the last reading; empty if it is
        not. Samples that were taken next to such a reading are left out.
    states : tuple of str
        What else holds now; the report has the share of readings for which each did.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What a watcher has to say about the whole time.

    Attributes
    ----------
    facts : mapping of str to object
        What can be written as JSON, and is small: it goes into every trace.
    notes : tuple of str
        What a reader of the numbers should know, each a short sentence.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Watcher(ABC):
    """Looks at one side of the environment of a timing.

    It works in the judge's process, from one thread, and is used for one timing at a time. What it
    raises never reaches the run: the watcher is then left alone, and a note says so.

    Attributes
    ----------
    name : str
        Its name in the report.
    devices : tuple of str
        The kinds of devices that it is of use for: ``cpu``, ``cuda``.
    nominal_mhz : int, optional
        The SM clock that a GPU was set to, if it was; set before `start`.
    """

    name: str = ""
    devices: tuple[str, ...] = ()
    nominal_mhz: Optional[int] = None

    @abstractmethod
    def start(self, device: str) -> None:
        """Begin, just before the first call.

        Parameters
        ----------
        device : str
            What is timed: ``cpu``, ``cuda`` or ``cuda:N``.

        Raises
        ------
        CapabilityError
            If it cannot watch here. The message says why, the hint what would help.
        """

    @abstractmethod
    def sample(self) -> Optional[Reading]:
        """Look, between two calls; None if nothing can be told now.

        This should take less than 100 µs, as the device waits. A watcher that takes longer is asked
        less often.
        """

    @abstractmethod
    def stop(self) -> Summary:
        """End, after the last call, and let go of everything."""

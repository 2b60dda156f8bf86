"""What a filter policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.tracing.entry import WorkloadEntry
    from flashinfer_bench.tracing.layout import Layout


class FilterPolicy(ABC):
    """Decides which of the calls of one definition become workloads, as they come.

    Each definition has a policy object of its own, which is used by one thread at a time. What it
    raises is counted, and costs the call that it was about.
    """

    def begin(self, layout: Layout) -> None:  # noqa: B027  # most need not know
        """Learn which definition it is for; called once, before anything else."""

    @abstractmethod
    def submit(self, entry: WorkloadEntry) -> None:
        """Take one call, to keep it or not. All inputs that are to be dumped have been copied."""

    @abstractmethod
    def drain(self) -> list[WorkloadEntry]:
        """Return what is kept, and keep it no more.

        Called before anything is written, and whenever as many entries as may be buffered have been
        submitted. What has been seen is remembered, so that it is not kept twice.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget everything that has been seen."""


class FastPath(NamedTuple):
    """How a call is known to be of no interest, before anything else is done with it.

    Parameters
    ----------
    condition : str
        Python, true for such a call, with ``a0``, ``a1``, … for the inputs by position. What it
        raises makes the call an ordinary one.
    positions : tuple of int
        The inputs in it.
    namespace : dict
        Other names in it.
    """

    condition: str
    positions: tuple[int, ...]
    namespace: dict[str, Any]


class OnlinePolicy(FilterPolicy):
    """A policy that decides by axes and inputs before anything is copied.

    Attributes
    ----------
    entries : list of WorkloadEntry
        Those kept.
    """

    def __init__(self) -> None:
        self.entries: list[WorkloadEntry] = []

    @abstractmethod
    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """Return whether a call is kept; if so it counts as kept from now on.

        Parameters
        ----------
        axes : mapping of str to int
            Value of each variable axis.
        inputs : mapping of str to Any
            The program's own arguments: they must be neither kept nor changed.
        """

    def keep(self, entry: WorkloadEntry) -> Optional[WorkloadEntry]:
        """Take a call that has been admitted; return the one that it displaces, if any."""
        self.entries.append(entry)
        return None

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """Return how the calls that `admit` would refuse are recognised quickly, if that is so.

        Called once, before anything else.
        """
        return None

    def bound(self, max_keys: int) -> None:
        """Remember no more than so many keys; see `TracingLimits`."""

    def submit(self, entry: WorkloadEntry) -> None:
        """See `FilterPolicy.submit`."""
        if self.admit(entry.axes, entry.values()):
            self.keep(entry)

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`."""
        drained, self.entries = self.entries, []
        return drained

    def reset(self) -> None:
        """See `FilterPolicy.reset`."""
        self.entries = []


def positive(name: str, value: Any) -> int:
    """Return a parameter of a policy that is a number of calls.

    Raises
    ------
    ConfigError
        If it is not a whole number from 1 on.
    """
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}={value!r} is not allowed; give a whole number from 1 on")
    return value

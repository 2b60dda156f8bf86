"""What a sandbox is: the seam between the benchmark loop and the plugin that confines processes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.plugins import Catalog, default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class SandboxMethod(ABC):
    """Confines a process; made anew in the judge's process and in each worker.

    A plugin registers a subclass by a `flashinfer_bench.plugins.SandboxSpec`; it is made without
    arguments.
    """

    needed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """What must be kept from a solution, and the measures of which one is enough."""

    needed_on_cpu: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """… and what else where it works on the CPU."""

    @abstractmethod
    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str], device: str, workdir: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Have this process give up what a solution does not need, before any of its code runs.

        Parameters
        ----------
        writable : sequence of str
            Folders that stay writable besides the process's own. Libraries keep what they compile
            in the first of them.
        hidden : sequence of str
            Folders that are to be empty for the process, as far as the system allows.
        device : str
            What the solution works on: ``cpu``, ``cuda`` or ``cuda:N``.
        workdir : Path
            The process's own folder, which is the current one.

        Returns
        -------
        applied : list of str
            Names of the measures that hold from now on.
        missing : dict of str to str
            The others, and why they do not.
        """

    def adopt(self, pid: int, *, device: str) -> None:  # noqa: B027 - most have nothing to do
        """Do for a fresh process what can be done from outside; called in the judge's process.

        `confine` follows in that process, and must not rely on it.

        Parameters
        ----------
        pid : int
            The process, which waits for its first request.
        device : str
            What it works on.
        """

    def tidy(self) -> None:  # noqa: B027 - few sandboxes leave anything
        """Remove what processes that have ended left behind; called in the judge's process."""


def pick_sandbox(
    catalog: Optional[Catalog] = None, *, tell: Callable[[str], object] = str
) -> Optional[SandboxMethod]:
    """Return the sandbox for this system that goes first; None if there is none.

    Parameters
    ----------
    catalog : Catalog, optional
        Where sandboxes are registered; by default what is installed.
    tell : callable
        Called with the reason for each that cannot be made, and is passed over.
    """
    for entry in (catalog or default_catalog()).entries("sandbox"):
        if sys.platform in entry.spec.platforms and entry.availability():
            try:
                made = entry.load()()
            except Exception as error:  # noqa: BLE001 - plugin boundary: another may do
                tell(f"sandbox {entry.name!r} of {entry.origin}: {error}")
                continue
            if isinstance(made, SandboxMethod):
                return made
            tell(f"sandbox {entry.name!r} of {entry.origin}: {made!r} is not a SandboxMethod")
    return None

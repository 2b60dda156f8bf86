"""A record together with the plugin that it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from flashinfer_bench._lazy import import_string
from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins._guard import PASSED_ON, one_line
from flashinfer_bench.plugins.records import Availability, Record

if TYPE_CHECKING:
    from flashinfer_bench.plugins.probes import Probe

SpecT_co = TypeVar("SpecT_co", bound=Record, covariant=True)


@dataclass(frozen=True)
class Registered(Generic[SpecT_co]):
    """A record together with the plugin that it came from.

    Parameters
    ----------
    spec : Record
        The record.
    distribution, version : str
        The distribution that provides it; both empty for a module of ``FIB_PLUGINS``.
    plugin : str
        Name of the plugin.
    check : Probe, optional
        Runs the record's probe; None when it has none.
    """

    spec: SpecT_co
    distribution: str = ""
    version: str = ""
    plugin: str = ""
    check: Optional[Probe] = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the record."""
        return self.spec.name

    @property
    def label(self) -> str:
        """Kind and name, as one says them: ``key builder 'gqa'``."""
        return f"{self.spec.kind.replace('_', ' ')} {self.name!r}"

    @property
    def origin(self) -> str:
        """Distribution and version, or the plugin's name where there is no distribution."""
        return f"{self.distribution} {self.version}".strip() or self.plugin

    def availability(self) -> Availability:
        """Return whether the code can be used on this machine; asked once, never raises.

        Returns
        -------
        Availability
            The probe's answer. A probe that raises, answers something else, or takes longer than
            ``FIB_PROBE_TIMEOUT_S`` counts as a no that says so.
        """
        return self.check.answer() if self.check is not None else Availability(True)

    def load(self) -> Any:
        """Import and return the object that the record's factory names.

        Returns
        -------
        Any
            The class or function; it is not called.

        Raises
        ------
        PluginLoadError
            If it cannot be imported, or is not there.
        """
        try:
            return import_string(self.spec.factory)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise PluginLoadError(
                f"The {self.label} of {self.origin} cannot be imported from "
                f"{self.spec.factory}: {one_line(error)}",
                hint=f"Run `fib plugins doctor {self.plugin}`.",
            ) from error

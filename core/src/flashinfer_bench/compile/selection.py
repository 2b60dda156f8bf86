"""Which builder takes a solution, and why none does."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.compile.builder import Builder
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    CapabilityError,
    PluginError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data import Solution
    from flashinfer_bench.plugins import BuilderSpec, Catalog
    from flashinfer_bench.plugins.registered import Registered

logger = logging.getLogger(__name__)

# A builder is a plugin: it may raise anything, and a library that it uses may call sys.exit.
ANYTHING = (Exception, SystemExit)


class Select(Protocol):
    """How a registry chooses among builders."""

    def __call__(self, solution: Solution) -> Builder:
        """Return the builder that takes `solution`."""
        ...

    def label(self, builder: Builder) -> str:
        """Return how users know a builder that was chosen."""
        ...


class GivenBuilders:
    """Chooses the first of some builders that can.

    Parameters
    ----------
    builders : tuple of Builder
        In order of preference.
    """

    def __init__(self, builders: tuple[Builder, ...]) -> None:
        self._builders = builders

    def __call__(self, solution: Solution) -> Builder:
        """Return the first builder that takes `solution`."""
        for builder in self._builders:
            if builder.can_build(solution):
                return builder
        names = ", ".join(map(self.label, self._builders))
        raise BuildError(
            f"no builder for language {str(solution.spec.language)!r} "
            f"(solution {solution.name!r}); there are {names}"
        )

    def label(self, builder: Builder) -> str:
        """Return the name of the builder's class."""
        return type(builder).__name__


class CatalogBuilders:
    """Chooses among the builders of a catalog, and makes each when it is first needed.

    Parameters
    ----------
    catalog : Catalog, optional
        None for that of the installed plugins at the time of the choice.
    device : str, optional
        Where the solutions shall work.
    """

    def __init__(self, catalog: Optional[Catalog], device: Optional[str]) -> None:
        self._given = catalog
        self._device = device
        self._made: dict[str, Builder] = {}
        self._broken: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, solution: Solution) -> Builder:
        """Return the first builder that can be used here and takes `solution`."""
        catalog, language = self._catalog(), (solution.spec.language, solution.spec.binding)
        try:
            for entry in catalog.builders_for(*language, device=self._device):
                builder = self._try_make(entry) if entry.availability() else None
                if builder is not None and builder.can_build(solution):
                    return builder
            # Raises if none can be used.
            catalog.select_builder(*language, solution=solution.name, device=self._device)
        except (CapabilityError, PluginError) as error:
            raise BuildCapabilityError(error.message, hint=error.hint) from error
        raise self._nobody(solution, catalog.builders_for(*language))

    def label(self, builder: Builder) -> str:
        """Return the name of the builder's record."""
        return next(name for name, made in self._made.items() if made is builder)

    def _nobody(self, solution: Solution, entries: Sequence[Registered[BuilderSpec]]) -> BuildError:
        """Make the error for a solution that every usable builder of its language declines."""
        spec = solution.spec
        usable = [
            e
            for e in entries
            if e.spec.serves(self._device) and e.availability() and e.name not in self._broken
        ]
        names = ", ".join(repr(entry.name) for entry in usable)
        message = f"no builder takes solution {solution.name!r}"
        if usable:
            message += (
                f", although {names} handle{'s' if len(usable) == 1 else ''} "
                f"language {str(spec.language)!r} with binding {spec.binding!r}"
            )
        willing = [e for e in entries if e not in usable and self._would_take(e, solution)]
        if not willing:
            return BuildError(message)
        remedies = (e.availability().remedy for e in willing if e.spec.serves(self._device))
        return BuildCapabilityError(
            "; ".join([message, *map(self._why_not, willing)]),
            hint="; ".join(filter(None, dict.fromkeys(remedies))) or None,
        )

    def _would_take(self, entry: Registered[BuilderSpec], solution: Solution) -> bool:
        try:
            return self._make(entry).can_build(solution)
        except ANYTHING:
            return True  # it cannot be asked, for lack of what makes it unavailable

    def _why_not(self, entry: Registered[BuilderSpec]) -> str:
        if not entry.spec.serves(self._device):
            return (
                f"{entry.name} ({entry.origin}) would, but is for {', '.join(entry.spec.devices)}"
            )
        reason = self._broken.get(entry.name) or entry.availability().reason.rstrip(".")
        return f"{entry.name} ({entry.origin}) would, but cannot be used here: {reason}"

    def _try_make(self, entry: Registered[BuilderSpec]) -> Optional[Builder]:
        """Return the builder, or None if its plugin is broken: that must not keep the next away."""
        try:
            return self._make(entry)
        except ANYTHING as error:
            named = f"{type(error).__name__}: {error}"
            reason = error.message if isinstance(error, PluginError) else named
        if entry.name not in self._broken:
            logger.warning("builder %s (%s) is broken: %s", entry.name, entry.origin, reason)
        self._broken[entry.name] = reason
        return None

    def _make(self, entry: Registered[BuilderSpec]) -> Builder:
        with self._lock:
            if entry.name not in self._made:
                self._made[entry.name] = _instantiate(entry.load(), entry.name)
            return self._made[entry.name]

    def _catalog(self) -> Catalog:
        if self._given is None:
            from flashinfer_bench.plugins import default_catalog

            return default_catalog()
        return self._given


def _instantiate(factory: Any, name: str) -> Builder:
    made = factory()
    if not isinstance(made, Builder):
        raise PluginError(
            f"builder {name!r}: its factory made a {type(made).__name__}, not a "
            "flashinfer_bench.compile.Builder"
        )
    return made

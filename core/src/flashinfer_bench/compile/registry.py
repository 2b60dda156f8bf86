"""The way from a solution to a runnable: choose a builder, build once, remember."""

from __future__ import annotations

import logging
import threading
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.compile.builder import Builder
from flashinfer_bench.compile.reference import reference_solution
from flashinfer_bench.compile.toolkit.cache import cache_folder
from flashinfer_bench.compile.toolkit.locks import build_lock
from flashinfer_bench.compile.toolkit.naming import content_digest
from flashinfer_bench.errors import BuildError, CapabilityError, PluginError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from flashinfer_bench.compile.runnable import Runnable
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.plugins import BuilderSpec, Catalog
    from flashinfer_bench.plugins.registered import Registered

    Select = Callable[[Solution], Builder]

logger = logging.getLogger(__name__)

# A builder is a plugin: it may raise anything, and a library that it uses may call sys.exit.
_ANYTHING = (Exception, SystemExit)


class _Build:
    """One build: not done yet, done, or failed for good."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runnable: Optional[Runnable] = None
        self.failure: Optional[tuple[str, Optional[str], str]] = None

    def outcome(self) -> Optional[Runnable]:
        """Return what was built, None if nothing was, or raise the failure anew."""
        if self.failure is not None:
            # A new exception each time: raising one object again would let its traceback grow.
            message, hint, log = self.failure
            raise BuildError(message, hint=hint, log=log)
        if self.runnable is not None and self.runnable.closed:
            self.runnable = None
        return self.runnable


class BuilderRegistry:
    """Builds solutions with the first builder that can, and keeps what it built.

    Builds are kept by content: the solution without its name, the definition's interface, the
    calling convention and the builder. A failed build is kept as well. Of several threads that want
    the same build one works and the others wait; so do processes, by a lock file, where the builder
    leaves something on disk that they share.

    Parameters
    ----------
    builders : sequence of Builder
        In order of preference.

    Raises
    ------
    ValueError
        If there are no builders.
    """

    def __init__(self, builders: Sequence[Builder], *, select: Optional[Select] = None) -> None:
        if not builders and select is None:
            raise ValueError("a registry needs at least one builder")
        self._select = select or _first_of(tuple(builders))
        self._builds: dict[tuple[str, str], _Build] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_catalog(cls, catalog: Optional[Catalog] = None) -> BuilderRegistry:
        """Make a registry of the builders that plugins provide.

        A builder is imported when the first solution needs it.

        Parameters
        ----------
        catalog : Catalog, optional
            Default: that of the installed plugins.
        """
        return cls((), select=_CatalogBuilders(catalog))

    @classmethod
    def get_instance(cls) -> BuilderRegistry:
        """Return the registry that the whole process shares."""
        return default_registry()

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution, or return what was built before.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            What to build.

        Returns
        -------
        Runnable
            The same object for the same content, until it is cleaned up.

        Raises
        ------
        BuildError
            If no builder can build it, or the build fails or failed before.
        StorageError
            If the build could not be stored; the next call tries again.
        """
        builder = self._choose(solution)
        kind = _name_of(builder)
        digest = content_digest(definition, solution, kind)
        with self._lock:
            build = self._builds.setdefault((kind, digest), _Build())
        with build.lock:
            known = build.outcome()
            if known is not None:
                return known
            try:
                build.runnable = self._run(builder, definition, solution, digest)
            except BuildError as error:
                build.failure = (error.message, error.hint, error.log)
                raise
            return build.runnable

    def build_reference(self, definition: Definition) -> Runnable:
        """Build the reference implementation of a definition.

        Raises
        ------
        BuildError
            If it cannot be built.
        """
        return self.build(definition, reference_solution(definition))

    def cleanup(self) -> None:
        """Clean up everything that was built, and forget it, failures included.

        An error in one cleaner is logged and does not keep the others from running.
        """
        with self._lock:
            builds = list(self._builds.values())
            self._builds.clear()
        for build in builds:
            with build.lock:
                _clean(build.runnable)

    clear = cleanup

    def _choose(self, solution: Solution) -> Builder:
        try:
            return self._select(solution)
        except BuildError:
            raise
        except _ANYTHING as error:
            reason, log = f"{type(error).__name__}: {error}", traceback.format_exc()
        raise BuildError(
            f"solution {solution.name!r}: choosing a builder failed: {reason}", log=log
        )

    def _run(
        self, builder: Builder, definition: Definition, solution: Solution, digest: str
    ) -> Runnable:
        try:
            with _lock_for(builder, digest):
                return _require_runnable(builder.build(definition, solution), builder, solution)
        except (BuildError, StorageError):
            raise
        except CapabilityError as error:
            raise BuildError(
                f"solution {solution.name!r}: {error.message}", hint=error.hint
            ) from error
        except _ANYTHING as error:
            reason, log = f"{type(error).__name__}: {error}", traceback.format_exc()
        raise BuildError(
            f"solution {solution.name!r}: builder {_name_of(builder)} raised {reason}", log=log
        )


def _require_runnable(made: Any, builder: Builder, solution: Solution) -> Runnable:
    from flashinfer_bench.compile.runnable import Runnable

    if not isinstance(made, Runnable):
        raise BuildError(
            f"solution {solution.name!r}: builder {_name_of(builder)} returned "
            f"a {type(made).__name__}, not a Runnable"
        )
    return made


def _lock_for(builder: Builder, digest: str) -> AbstractContextManager[Any]:
    if not builder.shares_builds:
        return nullcontext()
    folder = cache_folder(builder.build_dir_name)
    return build_lock(folder / f"{builder.package_prefix}_{digest}.building.lock")


def _clean(runnable: Optional[Runnable]) -> None:
    if runnable is None:
        return
    try:
        runnable.cleanup()
    except _ANYTHING:
        logger.warning("cleaning up %r failed", runnable, exc_info=True)


def _name_of(builder: Builder) -> str:
    return f"{type(builder).__module__}:{type(builder).__qualname__}"


def _first_of(builders: tuple[Builder, ...]) -> Select:
    def select(solution: Solution) -> Builder:
        for builder in builders:
            if builder.can_build(solution):
                return builder
        names = ", ".join(type(builder).__name__ for builder in builders)
        raise BuildError(
            f"no builder for language {str(solution.spec.language)!r} "
            f"(solution {solution.name!r}); there are {names}"
        )

    return select


class _CatalogBuilders:
    """Chooses among the builders of a catalog, and makes each when it is first needed."""

    def __init__(self, catalog: Optional[Catalog]) -> None:
        self._given = catalog
        self._made: dict[str, Builder] = {}
        self._lock = threading.Lock()

    def __call__(self, solution: Solution) -> Builder:
        catalog, spec = self._catalog(), solution.spec
        try:
            first = catalog.select_builder(spec.language, spec.binding, solution=solution.name)
            for entry in catalog.builders[catalog.builders.index(first) :]:
                if entry.spec.accepts(spec.language, spec.binding) and entry.availability():
                    builder = self._make(entry)
                    if builder.can_build(solution):
                        return builder
        except (CapabilityError, PluginError) as error:
            raise BuildError(error.message, hint=error.hint) from error
        raise BuildError(
            f"no builder takes solution {solution.name!r}, although {first.name!r} handles "
            f"language {str(spec.language)!r} with binding {spec.binding!r}"
        )

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


_default: Optional[BuilderRegistry] = None
_default_lock = threading.Lock()


def default_registry() -> BuilderRegistry:
    """Return the registry that the whole process shares, with the builders of all plugins."""
    global _default
    with _default_lock:
        if _default is None:
            _default = BuilderRegistry.from_catalog()
        return _default


def reset_default_registry() -> None:
    """Clean up the shared registry; the next use makes a new one, from the plugins of that time."""
    global _default
    with _default_lock:
        registry, _default = _default, None
    if registry is not None:
        registry.cleanup()


def get_registry() -> BuilderRegistry:
    """Return `default_registry`, under its old name."""
    return default_registry()

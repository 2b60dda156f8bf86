"""Choose a builder for a solution, build it once, and cache the runnable."""

from __future__ import annotations

import errno
import logging
import threading
import traceback
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import errors
from flashinfer_bench._lazy import OldAttributes, old_parameters
from flashinfer_bench.compile.builder import Builder, content_digest
from flashinfer_bench.compile.cache import build_lock, cache_folder, lock_of, own_place
from flashinfer_bench.compile.runnable import Runnable
from flashinfer_bench.data import BuildSpec, Definition, Solution, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.plugins import BuilderSpec, Catalog, Registered

_Choice = tuple[str, Builder]  # name shown to users, and the builder

# Builders are plugins: they may raise anything, and libraries they use may call sys.exit.
_ANYTHING = (Exception, SystemExit)
_BUILDER = "flashinfer_bench.compile.Builder"

logger = logging.getLogger(__name__)


class _Build:
    """One build: pending, done, or permanently failed."""

    def __init__(self, builder: Builder, digest: str) -> None:
        self.builder = builder
        self.lock = threading.Lock()
        self._digest = digest
        self._runnable: Optional[Runnable] = None
        self._failure: Optional[errors.BuildError] = None

    def outcome(self) -> Optional[Runnable]:
        """Return the runnable, None if not built yet, or raise the stored failure again."""
        if self._failure is not None:
            # A new exception each time: re-raising the same object would grow its traceback.
            raise errors.BuildError(
                self._failure.message, hint=self._failure.hint, log=self._failure.log
            )
        if self._runnable is not None and self._runnable.closed:
            self._runnable = None
        return self._runnable

    def attempt(self, definition: Definition, solution: Solution, *, load: bool) -> Any:
        """Run the builder; a failure caused by the solution is stored as permanent."""
        builder, name = self.builder, _name_of(self.builder)
        lock: AbstractContextManager[None] = nullcontext()
        if builder.shares_builds:
            folder = own_place(cache_folder(builder.build_dir_name))
            building = f"{builder.package_prefix}_{self._digest}.building"
            lock = build_lock(lock_of(folder / building))
        try:
            with _reporting(solution, f"builder {name} raised"), lock:
                work: Any = builder.build if load else builder.compile
                made = work(definition, solution)
            if load and not isinstance(made, Runnable):
                raise errors.BuildError(
                    f"solution {solution.name!r}: builder {name} returned a "
                    f"{type(made).__name__}, not a Runnable"
                )
            self._runnable = made if load else None
            return made
        except (errors.BuildCapabilityError, errors.StorageError):
            raise
        except errors.BuildError as error:
            self._failure = errors.BuildError(error.message, hint=error.hint, log=error.log)
            raise


class BuilderRegistry(OldAttributes):
    """Builds solutions with the first builder that accepts them, and caches the results.

    The cache key is the content of a build: the solution without its name, the definition's
    interface, the calling convention and the builder. Failed builds are cached, too. If several
    threads request the same build, one works and the others wait. The same holds for processes, by
    a lock file, if the builder leaves shared files on disk.

    Parameters
    ----------
    builders : sequence of Builder
        In order of preference.

    Raises
    ------
    ValueError
        If `builders` is empty.
    """

    def __init__(
        self,
        builders: Sequence[Builder],
        *,
        select: Optional[Callable[[Solution], _Choice]] = None,
    ) -> None:
        if not builders and select is None:
            raise ValueError("a registry needs at least one builder")
        self._given = tuple(builders)
        self._select = select or self._first_given
        self._builds: dict[tuple[str, str], _Build] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_catalog(
        cls, catalog: Optional[Catalog] = None, *, device: Optional[str] = None
    ) -> BuilderRegistry:
        """Create a registry of the builders that plugins provide.

        Each builder is imported when a solution first needs it.

        Parameters
        ----------
        catalog : Catalog, optional
            Default: the catalog of the installed plugins.
        device : str, optional
            Use only builders whose solutions run on this device: ``cpu``, ``cuda``, ``cuda:1``, …
        """
        return cls((), select=_CatalogBuilders(catalog, device))

    @classmethod
    def get_instance(cls) -> BuilderRegistry:
        """Return the registry shared by the whole process."""
        return default_registry()

    @old_parameters
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution, or return the cached result.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            The solution to build.

        Returns
        -------
        Runnable
            The same object for the same content, until it is cleaned up.

        Raises
        ------
        BuildCapabilityError
            If no available builder or tool on this machine can build it; the next call checks
            again.
        BuildError
            If the build fails or failed before.
        StorageError
            If the build could not be stored; the next call retries.
        """
        build = self._entry(definition, solution)
        with build.lock:
            known = build.outcome()
            if known is None:
                known = build.attempt(definition, solution, load=True)
            return known

    def compile(self, definition: Definition, solution: Solution) -> bool:
        """Do the part of a build that other processes can reuse, without loading or calling it.

        A later `build` in any process that shares the cache then has less to do. Compilers run with
        the flags of the solution, which can make them start other programs.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            The solution to compile.

        Returns
        -------
        bool
            Whether this call compiled something. False if everything was cached or there is nothing
            to compile.

        Raises
        ------
        BuildCapabilityError, BuildError, StorageError
            As for `build`.
        """
        build = self._entry(definition, solution)
        with build.lock:
            if build.outcome() is not None:
                return False
            made = build.attempt(definition, solution, load=False)
        does_something = type(build.builder).compile is not Builder.compile
        return bool(getattr(made, "fresh", does_something))

    def builder_of(self, solution: Solution) -> str:
        """Return the name of the builder that accepts a solution.

        Raises
        ------
        BuildError
            If no builder accepts it.
        """
        return self._choose(solution)[0]

    @old_parameters
    def build_reference(self, definition: Definition) -> Runnable:
        """Build the reference implementation of a definition.

        Raises
        ------
        BuildError
            If the build fails.
        """
        return self.build(definition, reference_solution(definition))

    def cleanup(self) -> None:
        """Release and forget all builds, including failures.

        An error in one cleaner is logged; the remaining cleaners still run.
        """
        with self._lock:
            builds = list(self._builds.values())
            self._builds.clear()
        for build in builds:
            with build.lock, suppress(errors.BuildError):
                runnable = build.outcome()
                try:
                    if runnable is not None:
                        runnable.cleanup()
                except _ANYTHING:
                    logger.warning("cleaning up %r failed", runnable, exc_info=True)

    clear = cleanup

    def _choose(self, solution: Solution) -> _Choice:
        with _reporting(solution, "choosing a builder failed:"):
            return self._select(solution)

    def _first_given(self, solution: Solution) -> _Choice:
        for builder in self._given:
            if builder.can_build(solution):
                return type(builder).__name__, builder
        names = ", ".join(type(builder).__name__ for builder in self._given)
        raise errors.BuildError(
            f"no builder for language {str(solution.spec.language)!r} "
            f"(solution {solution.name!r}); available: {names}"
        )

    def _entry(self, definition: Definition, solution: Solution) -> _Build:
        _, builder = self._choose(solution)
        key = (_name_of(builder), content_digest(definition, solution, _name_of(builder)))
        with self._lock:
            return self._builds.setdefault(key, _Build(builder, key[1]))


@contextmanager
def _reporting(solution: Solution, what: str) -> Iterator[None]:
    """Convert any exception in the block to an error type that the registry documents."""
    prefix = f"solution {solution.name!r}: "
    try:
        yield
    except (errors.BuildError, errors.StorageError):
        raise
    except errors.CapabilityError as error:
        message = prefix + error.message.removeprefix(prefix)  # may be there already
        raise errors.BuildCapabilityError(message, hint=error.hint) from error
    except errors.UnsafePathError as error:
        raise errors.BuildError(prefix + error.message) from error
    except _ANYTHING as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.StorageError(f"{prefix}{error}") from error
        message, log = f"{prefix}{what} {type(error).__name__}: {error}", traceback.format_exc()
        raise errors.BuildError(message, log=log) from None


def _name_of(builder: Builder) -> str:
    return f"{type(builder).__module__}:{type(builder).__qualname__}"


class _CatalogBuilders:
    """Chooses among the builders of a catalog, and creates each on first use."""

    def __init__(self, catalog: Optional[Catalog], device: Optional[str]) -> None:
        self._given = catalog
        self._device = device
        self._made: dict[str, Builder] = {}
        self._broken: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, solution: Solution) -> _Choice:
        """Return the first available builder that accepts `solution`."""
        from flashinfer_bench.plugins import default_catalog

        language = (solution.spec.language, solution.spec.binding)
        try:
            catalog = default_catalog() if self._given is None else self._given
            for entry in catalog.builders_for(*language, device=self._device):
                builder = self._make(entry) if entry.availability() else None
                if builder is not None and builder.can_build(solution):
                    return entry.name, builder
            # Raises if no builder is available.
            catalog.select_builder(*language, solution=solution.name, device=self._device)
        except (errors.CapabilityError, errors.PluginError) as error:
            raise errors.BuildCapabilityError(error.message, hint=error.hint) from error
        declining, told, remedies = 0, [], []
        for entry in catalog.builders_for(*language):
            answer = entry.availability()
            if not entry.spec.serves(self._device):
                reason = f"is for {', '.join(entry.spec.devices)}"
            elif not answer or entry.name in self._broken:
                why = self._broken.get(entry.name) or answer.reason.rstrip(".")
                reason = f"cannot be used here: {why}"
                remedies.append(answer.remedy)
            else:
                reason = "declines it"
                declining += 1
            told.append(f"{entry.name} ({entry.origin}) {reason}")
        message = f"no builder accepts solution {solution.name!r}: {'; '.join(told)}"
        if declining == len(told):
            raise errors.BuildError(message)
        hint = "; ".join(filter(None, dict.fromkeys(remedies))) or None
        raise errors.BuildCapabilityError(message, hint=hint)

    def _make(self, entry: Registered[BuilderSpec]) -> Optional[Builder]:
        """Return the builder, or None if its plugin is broken: the next one is tried then."""
        with self._lock:
            if entry.name in self._made:
                return self._made[entry.name]
            try:
                made = entry.load()()
                if isinstance(made, Builder):
                    self._made[entry.name] = made
                    return made
                reason = f"its factory made a {type(made).__name__}, not a {_BUILDER}"
            except errors.PluginError as error:
                reason = error.message
            except _ANYTHING as error:
                reason = f"{type(error).__name__}: {error}"
            if entry.name not in self._broken:
                logger.warning("builder %s (%s) is broken: %s", entry.name, entry.origin, reason)
            self._broken[entry.name] = reason
            return None


def reference_solution(definition: Definition) -> Solution:
    """Return a solution that consists of the definition's reference code.

    Parameters
    ----------
    definition : Definition
        Its ``reference`` must define a function ``run`` that returns the outputs.

    Returns
    -------
    Solution
        Named ``<definition>__reference``; a value-returning Python solution for any hardware.
    """
    return Solution(
        name=f"{definition.name}__reference",
        definition=definition.name,
        author="flashinfer_bench",
        spec=BuildSpec(
            language="python",
            target_hardware=["any"],
            entry_point="reference.py::run",
            destination_passing_style=False,
        ),
        sources=[SourceFile(path="reference.py", content=definition.reference)],
    )


_default: Optional[BuilderRegistry] = None
_default_lock = threading.Lock()


def default_registry() -> BuilderRegistry:
    """Return the registry shared by the whole process, with the builders of all plugins."""
    global _default
    with _default_lock:
        if _default is None:
            _default = BuilderRegistry.from_catalog()
        return _default


def reset_default_registry() -> None:
    """Clean up the shared registry; the next use creates a new one from the current plugins."""
    global _default
    with _default_lock:
        registry, _default = _default, None
    if registry is not None:
        registry.cleanup()


get_registry = default_registry  # its name in older releases

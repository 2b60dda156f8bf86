"""The way from a solution to a runnable: choose a builder, build once, remember."""

from __future__ import annotations

import errno
import logging
import threading
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from flashinfer_bench.compile.builder import Builder
from flashinfer_bench.compile.reference import reference_solution
from flashinfer_bench.compile.selection import ANYTHING, CatalogBuilders, GivenBuilders
from flashinfer_bench.compile.toolkit.cache import cache_folder, own_place
from flashinfer_bench.compile.toolkit.locks import build_lock
from flashinfer_bench.compile.toolkit.naming import content_digest
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    CapabilityError,
    StorageError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from flashinfer_bench.compile.runnable import Runnable
    from flashinfer_bench.compile.selection import Select
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.plugins import Catalog

_Made = TypeVar("_Made")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compilation:
    """Answer to `BuilderRegistry.compile`.

    Attributes
    ----------
    builder : str
        The builder: the name of its record, or of its class where there is no record.
    fresh : bool
        Whether this call compiled something; if not, everything was there, or there is nothing to
        compile.
    """

    builder: str
    fresh: bool


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

    def keep_failure(self, work: Callable[[], _Made]) -> _Made:
        """Do `work`; if it fails, and by the solution's fault, it has failed for good."""
        try:
            return work()
        except BuildCapabilityError:
            raise
        except BuildError as error:
            self.failure = (error.message, error.hint, error.log)
            raise


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
        self._select: Select = select or GivenBuilders(tuple(builders))
        self._builds: dict[tuple[str, str], _Build] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_catalog(
        cls, catalog: Optional[Catalog] = None, *, device: Optional[str] = None
    ) -> BuilderRegistry:
        """Make a registry of the builders that plugins provide.

        A builder is imported when the first solution needs it.

        Parameters
        ----------
        catalog : Catalog, optional
            Default: that of the installed plugins.
        device : str, optional
            Take only builders whose solutions work on it: ``cpu``, ``cuda``, ``cuda:1``, …
        """
        return cls((), select=CatalogBuilders(catalog, device))

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
        BuildCapabilityError
            If this machine lacks a builder or a tool for it; the next call looks again.
        BuildError
            If the build fails or failed before.
        StorageError
            If the build could not be stored; the next call tries again.
        """
        builder = self._choose(solution)
        build, digest = self._entry(builder, definition, solution)
        with build.lock:
            known = build.outcome()
            if known is not None:
                return known
            build.runnable = build.keep_failure(
                lambda: _require_runnable(
                    self._run(builder, solution, digest, builder.build, definition),
                    builder,
                    solution,
                )
            )
            return build.runnable

    def compile(self, definition: Definition, solution: Solution) -> Compilation:
        """Do the part of a build that other processes can use; neither load nor call the solution.

        A later `build`, here or in another process that shares the cache, then has less to do.
        Compilers run with the flags of the solution, which can have them start other programs.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            What to compile.

        Returns
        -------
        Compilation

        Raises
        ------
        BuildCapabilityError, BuildError, StorageError
            As of `build`.
        """
        builder = self._choose(solution)
        build, digest = self._entry(builder, definition, solution)
        with build.lock:
            if build.outcome() is not None:
                return Compilation(self._select.label(builder), fresh=False)
            made = build.keep_failure(
                lambda: self._run(builder, solution, digest, builder.compile, definition)
            )
        does_something = type(builder).compile is not Builder.compile
        fresh = bool(getattr(made, "fresh", does_something))
        return Compilation(self._select.label(builder), fresh)

    def builder_of(self, solution: Solution) -> str:
        """Return the name of the builder that takes a solution.

        Raises
        ------
        BuildError
            If none does.
        """
        return self._select.label(self._choose(solution))

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
        except CapabilityError as error:
            raise _lacking(solution, error) from error
        except ANYTHING as error:
            reason, log = f"{type(error).__name__}: {error}", traceback.format_exc()
        raise BuildError(
            f"solution {solution.name!r}: choosing a builder failed: {reason}", log=log
        )

    def _entry(
        self, builder: Builder, definition: Definition, solution: Solution
    ) -> tuple[_Build, str]:
        kind = _name_of(builder)
        digest = content_digest(definition, solution, kind)
        with self._lock:
            return self._builds.setdefault((kind, digest), _Build()), digest

    def _run(
        self,
        builder: Builder,
        solution: Solution,
        digest: str,
        work: Callable[[Definition, Solution], _Made],
        definition: Definition,
    ) -> _Made:
        try:
            with _lock_for(builder, digest):
                return work(definition, solution)
        except (BuildError, StorageError):
            raise
        except CapabilityError as error:
            raise _lacking(solution, error) from error
        except UnsafePathError as error:
            raise BuildError(f"solution {solution.name!r}: {error.message}") from error
        except ANYTHING as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"solution {solution.name!r}: {error}") from error
            reason, log = f"{type(error).__name__}: {error}", traceback.format_exc()
        raise BuildError(
            f"solution {solution.name!r}: builder {_name_of(builder)} raised {reason}", log=log
        )


def _lacking(solution: Solution, error: CapabilityError) -> BuildCapabilityError:
    prefix = f"solution {solution.name!r}: "  # builders may name it themselves
    message = prefix + error.message.removeprefix(prefix)
    return BuildCapabilityError(message, hint=error.hint)


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
    folder = own_place(cache_folder(builder.build_dir_name))
    return build_lock(folder / f"{builder.package_prefix}_{digest}.building.lock")


def _clean(runnable: Optional[Runnable]) -> None:
    if runnable is None:
        return
    try:
        runnable.cleanup()
    except ANYTHING:
        logger.warning("cleaning up %r failed", runnable, exc_info=True)


def _name_of(builder: Builder) -> str:
    return f"{type(builder).__module__}:{type(builder).__qualname__}"


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

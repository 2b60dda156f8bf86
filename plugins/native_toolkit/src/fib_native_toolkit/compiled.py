"""Base class of builders for compiled languages: compile once, cache, load.

A builder defines what a result depends on (`CompiledBuilder.plan`), how to compile
(`CompiledBuilder.compile_into`) and how to load (`CompiledBuilder.load`). This module handles
names, locks, the cache, validation of cached builds, and recovery from damage.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from fib_build_cache.info import FORMAT, LibraryInfo
from fib_native_toolkit.inputs import describe_headers, files_read, headers_sound, links_of
from fib_native_toolkit.run import COMPILER_LOG
from flashinfer_bench import __version__
from flashinfer_bench.compile.builder import SOURCES, Builder, write_sources
from flashinfer_bench.compile.cache import COMPLETE, build_once, is_complete, scratch_folder
from flashinfer_bench.compile.runnable import Runnable, RunnableMetadata
from flashinfer_bench.data.storage import sha256_of
from flashinfer_bench.errors import BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.data import Definition, Solution

_loaded: dict[Path, str] = {}


@dataclass(frozen=True)
class BuildPlan:
    """Everything that is known before a compiler runs.

    Parameters
    ----------
    key : mapping of str to str
        Everything that the result depends on besides definition and solution: compilers, flags,
        architectures, ABIs, in readable form. See `host_fingerprint`, `cuda_fingerprint`.
    settings : Any
        The builder's own data for `CompiledBuilder.compile_into`. Everything in it that affects the
        result must also be in `key`.
    versioned_roots : tuple of Path
        Folders whose contents are identified by `key`, such as the headers of a package whose
        version is in it. All other files outside the build's folder that compilers read are
        recorded, and checked whenever the build is used.
    """

    key: Mapping[str, str]
    settings: Any = None
    versioned_roots: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Artefact:
    """A finished build on disk.

    Parameters
    ----------
    folder : Path
        Complete; must not be written to.
    library : Path
        The library to load.
    info : LibraryInfo
        Contents of ``build.json`` in the folder.
    fresh : bool
        Whether it has just been compiled; otherwise it comes from the cache.
    """

    folder: Path
    library: Path
    info: LibraryInfo
    fresh: bool


@dataclass(frozen=True)
class LoadedLibrary:
    """The result of loading a library.

    Parameters
    ----------
    function : callable
        The entry point.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    misc : mapping
        For `RunnableMetadata.misc`.
    cleaner : callable, optional
        Unloads the library.
    """

    function: Callable[..., Any]
    destination_passing_style: bool
    misc: Mapping[str, Any] = field(default_factory=dict)
    cleaner: Optional[Callable[[], None]] = None


class CompiledBuilder(Builder):
    """A builder whose results are libraries on disk, shared by all processes.

    Attributes
    ----------
    build_type : str
        The kind of build, for `RunnableMetadata`.
    keep : tuple of str
        Patterns of additional files to keep besides the library, relative to the build's folder.
        All other files that compilers leave are removed.
    revision : str
        Change it when the builder produces a different result for the same `BuildPlan.key`. The
        version of the builder's distribution is always part of the key.

    Notes
    -----
    A build is repeated when a file outside its folder that compilers have read, or that the
    solution's flags name, has changed; see `BuildPlan.versioned_roots`. A new header that would be
    found before a recorded one is not detected.
    """

    # This class uses its own lock, which is not held while the library is loaded.
    shares_builds = False
    build_type: ClassVar[str]
    keep: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[str] = ""

    @abstractmethod
    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Return what the result will depend on; must be fast, because every load calls it.

        Raises
        ------
        CapabilityError
            If a compiler, or another requirement on this machine, is missing.
        BuildError
            If the solution is invalid on any machine.
        """

    @abstractmethod
    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Compile the solution without loading or calling it.

        Parameters
        ----------
        definition : Definition
            The interface of the solution.
        solution : Solution
            Its sources are already in ``folder/sources``.
        plan : BuildPlan
            The result of `plan`.
        folder : Path
            The working folder. It is renamed afterwards and has a new name each time, so pass
            relative paths to compilers if possible. Let compilers write depfiles (``-MD``) with
            names that end in ``.d``, so that changed headers, including system headers, are
            detected. Use ``run_tool(…, log=folder / COMPILER_LOG)`` to store the output of tools.

        Returns
        -------
        str
            Path of the library, relative to `folder`.

        Raises
        ------
        BuildError
            If the sources do not compile; see `check_output`.
        """

    @abstractmethod
    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library and look up the entry point.

        Raises
        ------
        BuildError
            If the entry point is missing, or cannot be called with the definition's arguments.
        """

    def compile(self, definition: Definition, solution: Solution) -> Artefact:
        """Return the finished build from the cache; compile if it is missing or not valid.

        Raises
        ------
        BuildError
            If the compilation fails.
        CapabilityError
            If this machine lacks something that is needed.
        StorageError
            If the cache is not writable.
        """
        links = links_of(solution)
        plan = self.plan(definition, solution)
        key = {
            **plan.key,
            # A builder's default flags may change with its release.
            "build_type": self.build_type,
            "format": str(FORMAT),
            "release": __version__,
            "builder": f"{release_of(type(self).__module__)} {self.revision}".strip(),
            **({"links": json.dumps(links, sort_keys=True)} if links else {}),
        }
        folder = self.build_path(definition, solution, json.dumps(key, sort_keys=True))
        found: list[Optional[LibraryInfo]] = [None]  # the build checked or made most recently
        made = False

        def sound(folder: Path) -> bool:
            found[0] = read_sound(folder)
            return found[0] is not None

        def produce(working: Path) -> None:
            nonlocal made
            found[0], made = self._produce(definition, solution, plan, key, working), True

        folder = build_once(folder, produce, sound=sound)
        info = found[0]
        assert info is not None
        with suppress(OSError):  # read-only caches are not pruned either
            os.utime(folder / COMPLETE)  # time of the last use, for pruning
        return Artefact(folder, folder / info.library, info, fresh=made)

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile or take from the cache, and load."""
        artefact = self.compile(definition, solution)
        try:
            loaded = self.load(definition, solution, _never_loaded(artefact))
        except (Exception, SystemExit):  # a loader may raise anything
            if read_sound(artefact.folder) == artefact.info:
                raise
            # After the check, the build was removed or damaged; another process may already have
            # rebuilt it.
            artefact = self.compile(definition, solution)
            loaded = self.load(definition, solution, _never_loaded(artefact))
        metadata = RunnableMetadata(
            build_type=self.build_type,
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=loaded.destination_passing_style,
            definition=definition,
            misc={
                "entry_point": solution.spec.entry_point,
                "library": str(artefact.library),
                "fresh": artefact.fresh,
                **loaded.misc,
            },
        )
        return Runnable(loaded.function, metadata, loaded.cleaner)

    def _produce(
        self,
        definition: Definition,
        solution: Solution,
        plan: BuildPlan,
        key: dict[str, str],
        folder: Path,
    ) -> LibraryInfo:
        started, since_ns = time.perf_counter(), time.time_ns()
        try:
            written = write_sources(folder / SOURCES, solution.sources)
            library = self.compile_into(definition, solution, plan, folder)
            file = folder / library
            inside = folder.resolve() in file.resolve().parents
            if not inside or file.is_symlink() or not file.is_file():
                made = {path.name for path in folder.iterdir()} - {SOURCES, COMPILER_LOG}
                raise BuildError(
                    f"solution {solution.name!r}: compiling produced no library {library!r} in its "
                    f"folder, but {', '.join(map(repr, sorted(made))) or 'nothing'}",
                    hint="Does a flag in compile_options.ldflags, such as -o, send it elsewhere?",
                )
            read = files_read(folder, solution, plan.versioned_roots)
            headers = describe_headers(read, since_ns=since_ns, until_ns=time.time_ns())
            kept = {*written, file}
            for path in [path for each in (COMPILER_LOG, *self.keep) for path in folder.glob(each)]:
                kept |= {path, *path.rglob("*")}
            _remove_the_rest(folder, kept)
            info = LibraryInfo(
                builder=f"{type(self).__module__}:{type(self).__qualname__}",
                build_type=self.build_type,
                solution=solution.name,
                author=solution.author,
                definition=definition.name,
                language=str(solution.spec.language),
                binding=solution.spec.binding and str(solution.spec.binding),
                key=key,
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                seconds=round(time.perf_counter() - started, 3),
                library=file.relative_to(folder).as_posix(),
                library_bytes=file.stat().st_size,
                library_sha256=sha256_of(file),
                headers=headers,
                format=FORMAT,
            )
            info.write(folder)
        except StorageError:
            raise
        except OSError as error:  # the disk's fault: not stored as a failure of the solution
            raise StorageError(f"{folder}: the build cannot be stored: {error}") from error
        return info


def read_sound(folder: Path) -> Optional[LibraryInfo]:
    """Return the metadata of a finished build, or None if the build is not valid.

    Parameters
    ----------
    folder : Path
        A build is not valid if it is incomplete, its library has changed, or a header that was
        compiled in has changed.
    """
    if not is_complete(folder):
        return None
    info = LibraryInfo.read(folder)
    sound = info is not None and info.is_library_sound(folder) and headers_sound(info.headers)
    return info if sound else None


def _never_loaded(artefact: Artefact) -> Artefact:
    """Return `artefact` with a library of which this process has loaded no older version.

    The system identifies loaded libraries by path. After a rebuild because of a changed header, it
    would return the old library.
    """
    digest = artefact.info.library_sha256
    if _loaded.setdefault(artefact.library, digest) == digest:
        return artefact
    try:
        copy = shutil.copy2(artefact.library, scratch_folder("library"))
    except OSError as error:
        raise StorageError(f"{artefact.library}: cannot be copied: {error}") from error
    return replace(artefact, library=Path(copy))


def _remove_the_rest(folder: Path, kept: set[Path]) -> None:
    """Remove all files except `kept`, and then empty folders."""
    for path in sorted(folder.rglob("*"), reverse=True):  # contents before folders
        if path in kept:
            continue
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()


@cache
def release_of(module: str) -> str:
    """Return name and version of the distribution that a builder's module belongs to.

    Parameters
    ----------
    module : str
        Such as ``fib_builder_example.builder``.

    Returns
    -------
    str
        Such as ``fib-builder-example 1.2.0``. Empty if no installed distribution has the package's
        name or registers it as a plugin.
    """
    package = module.partition(".")[0]
    name = package.replace("_", "-")
    with suppress(PackageNotFoundError):
        return f"{name} {version(name)}"
    for point in entry_points(group="flashinfer_bench.plugins"):
        if point.module.partition(".")[0] == package and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""

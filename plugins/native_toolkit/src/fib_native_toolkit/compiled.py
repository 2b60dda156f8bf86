"""The part that all builders of compiled languages share: compile once, keep it, load it.

A builder says what a result depends on (`CompiledBuilder.plan`), how to compile
(`CompiledBuilder.compile_into`) and how to load (`CompiledBuilder.load`). Names, locks, the cache,
the check of what is in it, and the way back from damage are here.
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

from fib_build_cache.info import FORMAT, LibraryInfo, sha256_of
from fib_native_toolkit.inputs import describe_headers, files_read, headers_sound, links_of
from fib_native_toolkit.run import COMPILER_LOG
from flashinfer_bench import __version__
from flashinfer_bench.compile.builder import SOURCES, Builder, write_sources
from flashinfer_bench.compile.cache import COMPLETE, build_once, is_complete, scratch_folder
from flashinfer_bench.compile.runnable import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.data import Definition, Solution

_loaded: dict[Path, str] = {}


@dataclass(frozen=True)
class BuildPlan:
    """All that is known before a compiler runs.

    Parameters
    ----------
    key : mapping of str to str
        Everything besides definition and solution that the result depends on: compilers, flags,
        architectures, ABIs. For people to read, too. See `host_fingerprint`, `cuda_fingerprint`.
    settings : Any
        The builder's own notes for `CompiledBuilder.compile_into`. Nothing may be in there that
        the result depends on and that `key` does not tell.
    versioned_roots : tuple of Path
        Folders whose contents `key` stands for, such as the headers of a package whose version it
        has. All other files that compilers read outside of the build's folder are recorded, and
        looked at whenever the build is used.
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
        Complete, and not to be written to.
    library : Path
        What is to be loaded.
    info : LibraryInfo
        What ``build.json`` in the folder says.
    fresh : bool
        Whether it was compiled just now; otherwise it was found in the cache.
    """

    folder: Path
    library: Path
    info: LibraryInfo
    fresh: bool


@dataclass(frozen=True)
class LoadedLibrary:
    """What a builder found in a library.

    Parameters
    ----------
    function : callable
        The entry point.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    misc : mapping
        For `RunnableMetadata.misc`.
    cleaner : callable, optional
        Releases what was loaded.
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
        Patterns of further files to keep beside the library, relative to the build's folder.
        Whatever else compilers leave is removed.
    revision : str
        To be changed where the builder makes something else of the same `BuildPlan.key` than it
        did. The version of the distribution that the builder comes in counts anyway.

    Notes
    -----
    A build is made anew when a file outside of its folder that compilers have read, or that the
    solution's flags name, has changed; see `BuildPlan.versioned_roots`. A new header that would be
    found before one that was read is not noticed.
    """

    # It takes a lock of its own, which is free again while the library is loaded.
    shares_builds = False
    build_type: ClassVar[str]
    keep: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[str] = ""

    @abstractmethod
    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Say what the result will depend on; quick, for it is asked at each load from the cache.

        Raises
        ------
        CapabilityError
            If a compiler, or something else of this machine, is missing.
        BuildError
            If the solution cannot be built by anyone.
        """

    @abstractmethod
    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Compile; neither load nor call the solution.

        Parameters
        ----------
        definition : Definition
            The interface.
        solution : Solution
            Its sources are in ``folder/sources`` already.
        plan : BuildPlan
            What `plan` returned.
        folder : Path
            To work in. It is renamed afterwards, so give compilers relative paths where you can.
            Its name is new each time. Let them write depfiles (``-MD``), which have names that end
            in ``.d``: so headers that have changed are noticed, the system's among them. What tools
            print is kept by ``run_tool(…, log=folder / COMPILER_LOG)``.

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
            If the entry point is missing, or cannot be called as the definition asks.
        """

    def compile(self, definition: Definition, solution: Solution) -> Artefact:
        """Return the finished build from the cache; compile if it is not there, or not sound.

        Raises
        ------
        BuildError
            If the solution cannot be compiled.
        CapabilityError
            If something of this machine is missing.
        StorageError
            If the cache cannot be written.
        """
        links = links_of(solution)
        plan = self.plan(definition, solution)
        key = {
            **plan.key,
            # Flags that a builder always gives may change with its release.
            "build_type": self.build_type,
            "format": str(FORMAT),
            "release": __version__,
            "builder": f"{release_of(type(self).__module__)} {self.revision}".strip(),
            **({"links": json.dumps(links, sort_keys=True)} if links else {}),
        }
        folder = self.build_path(definition, solution, json.dumps(key, sort_keys=True))
        found: list[Optional[LibraryInfo]] = [None]  # what was checked, or made, last
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
        with suppress(OSError):  # read-only: then nobody prunes it either
            os.utime(folder / COMPLETE)  # the time of the last use, by which the cache is pruned
        return Artefact(folder, folder / info.library, info, fresh=made)

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile, or take from the cache, and load."""
        artefact = self.compile(definition, solution)
        try:
            loaded = self.load(definition, solution, _never_loaded(artefact))
        except (Exception, SystemExit):  # a loader is a library, and may raise anything
            if read_sound(artefact.folder) == artefact.info:
                raise
            # Since it was looked at, somebody has emptied the cache or something damaged it, and
            # perhaps another process has built it anew already.
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
        except OSError as error:  # the disk's fault: it is not kept as the solution's
            raise StorageError(f"{folder}: the build cannot be stored: {error}") from error
        return info


def read_sound(folder: Path) -> Optional[LibraryInfo]:
    """Return what a finished build says about itself, or None if it cannot be used as it is.

    Parameters
    ----------
    folder : Path
        It cannot be used if it is not complete, its library is not as it was made, or a header
        that was compiled in has changed.
    """
    if not is_complete(folder):
        return None
    info = LibraryInfo.read(folder)
    sound = info is not None and info.is_library_sound(folder) and headers_sound(info.headers)
    return info if sound else None


def _never_loaded(artefact: Artefact) -> Artefact:
    """Return `artefact` with a library that this process has not loaded in an older version.

    The system takes a library for loaded if one was loaded from the same path, whatever is there
    now: after a rebuild, because a header has changed, this would be the old one.
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
    """Remove all files but `kept`, and the folders that are empty then."""
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
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
        Such as ``fib-builder-example 1.2.0``. Empty for a module of no installed distribution that
        has the package's name or registers it as a plugin.
    """
    package = module.partition(".")[0]
    name = package.replace("_", "-")
    with suppress(PackageNotFoundError):
        return f"{name} {version(name)}"
    for point in entry_points(group="flashinfer_bench.plugins"):
        if point.module.partition(".")[0] == package and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""

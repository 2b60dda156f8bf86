"""From the sources of a solution in Python, or in a language inside Python, to a function."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.compile.toolkit.logs import describe_exception
from flashinfer_bench.compile.toolkit.naming import content_digest, package_name
from flashinfer_bench.compile.toolkit.pymodule import SourcePackage, open_package
from flashinfer_bench.compile.toolkit.scratch import scratch_folder
from flashinfer_bench.compile.toolkit.signature import choose_style
from flashinfer_bench.compile.toolkit.sources import write_sources
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from flashinfer_bench.data import Definition, Solution


class LoadedPython(NamedTuple):
    """An imported solution.

    Attributes
    ----------
    function : callable
        What the entry point names.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    package : str
        Name of the package that its modules are in.
    cleaner : callable
        Forgets the modules and removes the files; idempotent.
    root : Path
        Folder of its sources.
    """

    function: Callable[..., Any]
    destination_passing_style: bool
    package: str
    cleaner: Callable[[], None]
    root: Path


def load_python(definition: Definition, solution: Solution, *, prefix: str) -> LoadedPython:
    """Import a solution's entry point.

    The sources are written to a folder of this process and imported as a package of their own, so
    that modules of the same name in two solutions do not meet. Files that are not Python lie beside
    them.

    Parameters
    ----------
    definition : Definition
        What the function is checked against.
    solution : Solution
        Its entry file must be a ``.py`` file.
    prefix : str
        Begins the name of the package.

    Returns
    -------
    LoadedPython
        The function, and how to get rid of it.

    Raises
    ------
    BuildError
        If the import fails, or the entry point is missing or cannot be called as the definition
        asks.
    StorageError
        If the sources cannot be written.
    """
    path = _entry_file(solution)
    name = package_name(prefix, solution, content_digest(definition, solution, prefix))
    root = scratch_folder(name[: len(prefix) + 40]).resolve()
    package = None
    try:
        write_sources(root, solution.sources)
        package = open_package(name, root)
        function = find_entry(_import(package, path, solution), solution)
        style = choose_style(function, definition, solution)
    except BaseException:
        _discard(package, root)
        raise
    loaded = package
    return LoadedPython(function, style, loaded.name, lambda: _discard(loaded, root), root)


def find_entry(module: ModuleType, solution: Solution) -> Callable[..., Any]:
    """Return the callable that a solution's entry point names.

    Parameters
    ----------
    module : ModuleType
        The imported entry file.
    solution : Solution
        Names the symbol.

    Raises
    ------
    BuildError
        If the module has no such symbol, or it cannot be called.
    """
    symbol = solution.get_entry_symbol()
    place = f"solution {solution.name!r}: {solution.get_entry_path()}"
    if not hasattr(module, symbol):
        near = difflib.get_close_matches(symbol, [n for n in dir(module) if n[:1] != "_"], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else None
        raise BuildError(f"{place} defines no {symbol!r}", hint=hint)
    found = getattr(module, symbol)
    if not callable(found):
        raise BuildError(f"{place}: {symbol!r} is a {type(found).__name__}, which cannot be called")
    function: Callable[..., Any] = found
    return function


def _entry_file(solution: Solution) -> str:
    path = solution.get_entry_path()
    if PurePosixPath(path).suffix != ".py":
        raise BuildError(
            f"solution {solution.name!r}: the entry file of a {solution.spec.language} solution "
            f"must be a .py file, not {path!r}"
        )
    return path


def _import(package: SourcePackage, path: str, solution: Solution) -> ModuleType:
    try:
        return package.import_file(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - candidate code may raise anything, SystemExit too
        headline, log = describe_exception(error, package.root)
    # Raised here, where the traceback of the candidate's frames is no longer attached.
    raise BuildError(f"solution {solution.name!r}: importing {path} failed: {headline}", log=log)


def _discard(package: SourcePackage | None, root: Path) -> None:
    if package is not None:
        package.close()
    shutil.rmtree(root, ignore_errors=True)

"""Native libraries that a solution may list in ``dependencies``: cuBLAS, cuDNN, CUTLASS.

Each is searched in the folders named by environment variables, in the CUDA toolkit, in wheels
installed by pip, and in the standard locations of Linux distributions.
"""

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_native_toolkit import environment
from fib_native_toolkit.tools import CUDA_VARIABLES, cuda_home
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME = re.compile(r"\s*([A-Za-z0-9]+)\s*([(<>=!~].*)?")
_LIBRARY_FOLDERS = ("lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
_SYSTEM = ("/usr", "/usr/local")
_SEARCHED_ANYWAY = ("/usr/include", "/usr/local/include")


@dataclass(frozen=True)
class Dependency:
    """An installed native library.

    Parameters
    ----------
    name : str
        ``"cublas"``, ``"cudnn"`` or ``"cutlass"``.
    version : str
        Version according to its headers; empty if unknown.
    include_paths : tuple of str
        Header folders.
    library_paths : tuple of str
        Library folders, for linking and loading; empty for header-only libraries.
    libraries : tuple of str
        Arguments of ``-l``: ``cublas``, or ``:libcublas.so.13`` if there is only a versioned file.
    """

    name: str
    version: str
    include_paths: tuple[str, ...]
    library_paths: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Key for a `BuildPlan`; includes the library folder, which is linked in."""
        return " ".join([self.name, self.version, *self.library_paths, *self.libraries])

    def include_flags(self) -> list[str]:
        """Return the compile flags; they come after the solution's own."""
        # Naming a default folder changes the search order and breaks standard headers.
        paths = [path for path in self.include_paths if path not in _SEARCHED_ANYWAY]
        return [part for path in paths for part in ("-isystem", path)]

    def link_flags(self) -> list[str]:
        """Return the flags for linking with gcc or clang, including the run-time path."""
        folders = [f"-L{path}" for path in self.library_paths]
        runtime = [f"-Wl,-rpath,{path}" for path in self.library_paths]
        return [*folders, *runtime, *(f"-l{name}" for name in self.libraries)]


class _Library(NamedTuple):
    """How to recognise a library."""

    header: str
    version_header: str
    macro: str  # prefix of its version macros
    libraries: tuple[str, ...]
    variables: tuple[str, ...]
    packages: tuple[str, ...]
    install: str


_KNOWN = {
    "cublas": _Library(
        header="cublas_v2.h",
        version_header="cublas_api.h",
        macro="CUBLAS_VER_",
        libraries=("cublas", "cublasLt"),
        variables=("CUBLAS_PATH",),
        packages=("nvidia/cublas", "nvidia/cu13", "nvidia/cu12"),
        install="Install the CUDA toolkit with cuBLAS, or: pip install nvidia-cublas",
    ),
    "cudnn": _Library(
        header="cudnn.h",
        version_header="cudnn_version.h",
        macro="CUDNN_",
        libraries=("cudnn",),
        variables=("CUDNN_PATH", "CUDNN_HOME", "CUDNN_ROOT"),
        packages=("nvidia/cudnn",),
        install="pip install nvidia-cudnn-cu13, or set CUDNN_PATH to its folder.",
    ),
    "cutlass": _Library(
        header="cutlass/cutlass.h",
        version_header="cutlass/version.h",
        macro="CUTLASS_",
        libraries=(),
        variables=("CUTLASS_PATH", "CUTLASS_DIR", "CUTLASS_HOME", "CUTLASS_ROOT"),
        packages=("cutlass_library/source",),
        install="pip install nvidia-cutlass, or set CUTLASS_PATH to a checkout.",
    ),
}
LIBRARY_VARIABLES = tuple(name for known in _KNOWN.values() for name in known.variables)
"""Environment variables that name the folders of libraries."""

_OTHER_NAMES = {"cublaslt": "cublas", "cute": "cutlass"}


def find_dependencies(names: Iterable[str]) -> tuple[list[Dependency], list[str]]:
    """Find the native libraries among a solution's dependencies.

    Parameters
    ----------
    names : iterable of str
        As declared by the solution: ``"cublas"``, ``"cudnn >= 9"``, ``"torch"``.

    Returns
    -------
    found : list of Dependency
        One for each native library.
    ignored : list of str
        Other dependencies, such as Python packages, which are irrelevant to compilers.

    Raises
    ------
    CapabilityError
        If a library is missing, or has the wrong version.
    """
    found: dict[str, Dependency] = {}
    ignored = []
    for text in names:
        match = _NAME.fullmatch(text)
        name = match.group(1).lower() if match else ""
        name = _OTHER_NAMES.get(name, name)
        if match is None or name not in _KNOWN:
            ignored.append(text)
            continue
        if name not in found:
            found[name] = _find(name, _KNOWN[name])
        here = found[name]
        if match.group(2) and here.version and not _allows(match.group(2), here.version):
            raise CapabilityError(
                f"found {name} {here.version} ({here.include_paths[0]}), "
                f"but the solution needs {text.strip()!r}",
                hint=_KNOWN[name].install,
            )
    return list(found.values()), ignored


def _allows(wanted: str, version: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(wanted.strip(" ()")).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _find(name: str, library: _Library) -> Dependency:
    searched = []
    for place, root in _places(library):
        searched.append(place)
        found = _look_in(name, library, root) if root is not None else None
        if found is not None:
            return found
    wanted = f"{library.header} with its libraries" if library.libraries else library.header
    raise CapabilityError(
        f"{name} not found: no {wanted} in {', '.join(dict.fromkeys(searched))}",
        hint=library.install,
    )


def _places(library: _Library) -> Iterator[tuple[str, Optional[Path]]]:
    """Yield the description and path of each location to search; None for missing ones."""
    given = environment.library_roots(*library.variables)
    yield from ((f"${name} ({root})", root) for name, root in given)
    if not given:
        yield f"${library.variables[0]} (not set)", None
    if library.libraries:  # CUTLASS is not part of CUDA
        try:
            homes = [cuda_home()]
        except CapabilityError:  # a toolkit without compiler may still have the library
            homes = [root for _, root in environment.library_roots(*CUDA_VARIABLES)]
        homes += [target for home in homes for target in sorted(home.glob("targets/*-linux"))]
        yield from (("the CUDA toolkit", root) for root in [None, *homes])
    for package in library.packages:
        package, _, inside = package.partition("/")
        yield f"the Python package {package}", None
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            for folder in (spec and spec.submodule_search_locations) or ():
                yield f"the Python package {package}", Path(folder) / inside
    if library.libraries:
        yield from ((root, Path(root)) for root in _SYSTEM)


def _look_in(name: str, library: _Library, root: Path) -> Optional[Dependency]:
    folders = [root / "include", *sorted(root.glob("include/*-linux-gnu"))]
    include = next((folder for folder in folders if (folder / library.header).is_file()), None)
    if include is None:
        return None
    text = ""
    with suppress(OSError):
        text = (include / library.version_header).read_text(encoding="utf-8", errors="replace")
    pattern = rf"^\s*#\s*define\s+{library.macro}(?:MAJOR|MINOR|PATCH(?:LEVEL)?)\s+(\d+)"
    version = ".".join(re.findall(pattern, text, re.MULTILINE))
    more = root / "tools" / "util" / "include"  # used by CUTLASS
    includes = (str(include), *([str(more)] if more.is_dir() else []))
    if not library.libraries:
        return Dependency(name, version, includes)
    for folder in (root / part for part in _LIBRARY_FOLDERS):
        linkable = []
        for wanted in library.libraries:
            # Wheels have no unversioned link.
            files = sorted(folder.glob(f"lib{wanted}.so.*"), key=lambda path: len(path.name))
            if (folder / f"lib{wanted}.so").exists():
                linkable.append(wanted)
            elif files:
                linkable.append(f":{files[0].name}")
        if len(linkable) == len(library.libraries):
            return Dependency(name, version, includes, (str(folder),), tuple(linkable))
    return None

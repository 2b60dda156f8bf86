"""The native libraries that a solution may name in ``dependencies``: cuBLAS, cuDNN, CUTLASS.

Each is looked for in the folders that variables name, in the CUDA toolkit, in the wheels that pip
installs, and, for cuDNN, where distributions put it.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from fib_native_toolkit.tools import CUDA_VARIABLES, cuda_home
from flashinfer_bench import env
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME = re.compile(r"\s*([A-Za-z0-9]+)")
_LIBRARY_FOLDERS = ("lib64", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
_SYSTEM = ("/usr", "/usr/local")
_SEARCHED_ANYWAY = ("/usr/include", "/usr/local/include")


@dataclass(frozen=True)
class Dependency:
    """A native library that is here.

    Parameters
    ----------
    name : str
        ``"cublas"``, ``"cudnn"`` or ``"cutlass"``.
    version : str
        What its headers say; empty if they do not.
    include_paths : tuple of str
        Folders with its headers.
    library_paths : tuple of str
        Folders with its libraries, also when they are loaded; none for one of headers alone.
    libraries : tuple of str
        What follows ``-l``: ``cublas``, or ``:libcublas.so.13`` where there is no other file.
    """

    name: str
    version: str
    include_paths: tuple[str, ...]
    library_paths: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What a result depends on, for a `BuildPlan`: the folder of the libraries is linked in."""
        return " ".join([self.name, self.version, *self.library_paths, *self.libraries])

    def include_flags(self) -> list[str]:
        """Return the flags for compiling; they come after the solution's own."""
        # Naming a folder that is searched anyway changes the order: the standard headers break.
        paths = [path for path in self.include_paths if path not in _SEARCHED_ANYWAY]
        return [part for path in paths for part in ("-isystem", path)]

    def link_flags(self) -> list[str]:
        """Return the flags for linking with gcc or clang, and for finding it when loaded."""
        folders = [f"-L{path}" for path in self.library_paths]
        runtime = [f"-Wl,-rpath,{path}" for path in self.library_paths]
        return [*folders, *runtime, *(f"-l{name}" for name in self.libraries)]


class _Library(NamedTuple):
    """How to recognise a library."""

    header: str
    version_header: str
    version_macros: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    more_headers: tuple[str, ...] = ()
    in_cuda: bool = False
    in_system: bool = False
    install: str = ""


_KNOWN = {
    "cublas": _Library(
        header="cublas_v2.h",
        version_header="cublas_api.h",
        version_macros=("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"),
        libraries=("cublas", "cublasLt"),
        variables=("CUBLAS_PATH",),
        packages=("nvidia/cublas", "nvidia/cu13", "nvidia/cu12"),
        in_cuda=True,
        install="Install the CUDA toolkit with cuBLAS, or: pip install nvidia-cublas",
    ),
    "cudnn": _Library(
        header="cudnn.h",
        version_header="cudnn_version.h",
        version_macros=("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"),
        libraries=("cudnn",),
        variables=("CUDNN_PATH", "CUDNN_HOME", "CUDNN_ROOT"),
        packages=("nvidia/cudnn",),
        in_cuda=True,
        in_system=True,
        install="pip install nvidia-cudnn-cu13, or set CUDNN_PATH to its folder.",
    ),
    "cutlass": _Library(
        header="cutlass/cutlass.h",
        version_header="cutlass/version.h",
        version_macros=("CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH"),
        variables=("CUTLASS_PATH", "CUTLASS_DIR", "CUTLASS_HOME", "CUTLASS_ROOT"),
        packages=("cutlass_library/source",),
        more_headers=("tools/util/include",),
        install="pip install nvidia-cutlass, or set CUTLASS_PATH to a checkout.",
    ),
}
LIBRARY_VARIABLES = tuple(name for known in _KNOWN.values() for name in known.variables)
"""The variables that name folders of libraries."""

_OTHER_NAMES = {"cublaslt": "cublas", "cute": "cutlass"}


def find_dependencies(names: Iterable[str]) -> tuple[list[Dependency], list[str]]:
    """Find the native libraries among a solution's dependencies.

    Parameters
    ----------
    names : iterable of str
        As the solution has them: ``"cublas"``, ``"cudnn >= 9"``, ``"torch"``.

    Returns
    -------
    found : list of Dependency
        One for each native library.
    ignored : list of str
        The others, such as Python packages: compilers need not know of them.

    Raises
    ------
    CapabilityError
        If one is not here, or not in the version that is asked for.
    """
    found: dict[str, Dependency] = {}
    ignored = []
    for text in names:
        match = _NAME.match(text)
        name = match.group(1).lower() if match else ""
        name = _OTHER_NAMES.get(name, name)
        if name not in _KNOWN or not _is_plain(text):
            ignored.append(text)
            continue
        if name not in found:
            found[name] = _find(name)
        _check_version(found[name], text)
    return list(found.values()), ignored


def _is_plain(text: str) -> bool:
    """Return whether `text` is a name, perhaps with a version: not "cutlass-dsl"."""
    return re.fullmatch(r"\s*[A-Za-z0-9]+\s*([(<>=!~].*)?", text) is not None


def _find(name: str) -> Dependency:
    library = _KNOWN[name]
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
    """Yield where to look, and what that is called; no path for a place that is not there."""
    given = env.library_roots(*library.variables)
    yield from ((f"${name} ({root})", root) for name, root in given)
    if not given:
        yield f"${library.variables[0]} (not set)", None
    if library.in_cuda:
        yield from (("the CUDA toolkit", root) for root in [None, *_cuda_roots()])
    for package in library.packages:
        name = f"the Python package {package.partition('/')[0]}"
        yield from ((name, folder) for folder in [None, *_package_folders(package)])
    if library.in_system:
        yield from ((root, Path(root)) for root in _SYSTEM)


def _cuda_roots() -> Iterator[Path]:
    try:
        home = cuda_home()
    except CapabilityError:
        # Without its compiler a toolkit may still have the library.
        yield from (root for _, root in env.library_roots(*CUDA_VARIABLES))
        return
    yield home
    yield from sorted(home.glob("targets/*-linux"))


def _package_folders(path: str) -> Iterator[Path]:
    package, _, inside = path.partition("/")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder) / inside


def _look_in(name: str, library: _Library, root: Path) -> Optional[Dependency]:
    include = _header_folder(library.header, root)
    if include is None:
        return None
    version = _read_version(include / library.version_header, library.version_macros)
    more = [root / path for path in library.more_headers if (root / path).is_dir()]
    includes = tuple(str(path) for path in [include, *more])
    if not library.libraries:
        return Dependency(name, version, includes)
    for folder in (root / part for part in _LIBRARY_FOLDERS):
        files = [_library_in(folder, wanted) for wanted in library.libraries]
        linkable = tuple(file for file in files if file is not None)
        if len(linkable) == len(files):
            return Dependency(name, version, includes, (str(folder),), linkable)
    return None


def _header_folder(header: str, root: Path) -> Optional[Path]:
    machines = sorted(root.glob("include/*-linux-gnu"))
    folders = [root / "include", *machines]
    return next((folder for folder in folders if (folder / header).is_file()), None)


def _library_in(folder: Path, name: str) -> Optional[str]:
    """Return what to put behind ``-l``, or None if the library is not there."""
    if (folder / f"lib{name}.so").exists():
        return name
    # Wheels have no link without a version.
    versions = sorted(folder.glob(f"lib{name}.so.*"), key=lambda path: len(path.name))
    return f":{versions[0].name}" if versions else None


def _read_version(header: Path, macros: tuple[str, ...]) -> str:
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = [
        re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE) for macro in macros
    ]
    return ".".join(match.group(1) for match in found if match)


def _check_version(found: Dependency, text: str) -> None:
    if _NAME.fullmatch(text.rstrip()):
        return  # the usual case, which does without the import
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text).specifier
    except InvalidRequirement:
        return
    if found.version and not wanted.contains(found.version, prereleases=True):
        raise CapabilityError(
            f"{found.name} {found.version} is here ({found.include_paths[0]}), "
            f"but the solution needs {text.strip()!r}",
            hint=_KNOWN[found.name].install,
        )

"""Files outside its own folder that a build has read: headers, and files named by flags.

The paths of these files are not part of a build's key, and their contents may change. Each is
therefore recorded with its digest, and checked whenever the build is used; see `describe_headers`.
One change is not detected: a new header in a folder that is searched before the folder of the
recorded header, which itself is unchanged.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fib_native_toolkit import environment
from fib_native_toolkit.dependencies import LIBRARY_VARIABLES
from fib_native_toolkit.options import checked_options
from flashinfer_bench.data.storage import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.data import Solution

Header = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, SHA-256."""

_SHARED = re.compile(r"\.so(\.[\d.]+)?$")
# Where a path may start in a flag: ``-Wl,-T,/x``, ``-fprofile-use=/x``, ``-I/x``.
_PATH = re.compile(r"^(?:-[A-Za-z-]+|[^/]*[=:])?(/.*)$")
_SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_SEPARATOR = re.compile(r"(?<!\\)\s+")


def links_of(solution: Solution) -> dict[str, str]:
    """Return the targets of searched header folders that are, or go through, links.

    GCC records the target of a header found through a link. If the link changes later, this must be
    detected separately.
    """
    variables = environment.compiler_variables()
    searched = [*checked_options(solution).include_paths, *map(_path_in, _words(solution))]
    searched += [path for name in _SEARCHED for path in variables.get(name, "").split(os.pathsep)]
    searched += [str(root) for _, root in environment.library_roots(*LIBRARY_VARIABLES)]
    folders = {path: os.path.realpath(path) for path in searched if path.startswith("/")}
    return {path: real for path, real in folders.items() if real != os.path.normpath(path)}


def files_read(folder: Path, solution: Solution, versioned_roots: Iterable[Path]) -> list[Path]:
    """Return the files outside a build's folder that were read to make it.

    Parameters
    ----------
    folder : Path
        The folder with the compilers' depfiles.
    solution : Solution
        The solution. Its flags may name objects, static libraries, linker scripts and similar
        files.
    versioned_roots : iterable of Path
        Folders whose files are omitted, wherever links to them are.

    Returns
    -------
    list of Path
        Sorted.
    """
    candidates = {*read_dependencies(folder), *_named_files(_words(solution))}
    real = cache(os.path.realpath)  # thousands of files share few folders
    known = tuple(f"{real(root)}{os.sep}" for root in (folder, *versioned_roots))
    return sorted(
        path
        for path in candidates
        if folder not in path.parents
        and not f"{real(path.parent)}{os.sep}{path.name}".startswith(known)
    )


def read_dependencies(folder: Path) -> set[Path]:
    """Return the files that were read to compile the contents of `folder`.

    Parameters
    ----------
    folder : Path
        A folder in which compilers have run with depfiles (``-MD``).

    Returns
    -------
    set of Path
        Absolute, without ``..`` unless links give it a different meaning; empty if there are no
        depfiles.
    """
    found: set[str] = set()
    for depfile in folder.rglob("*.d"):
        if depfile.is_file():
            text = depfile.read_text(encoding="utf-8", errors="replace")
            for rule in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
                # Make syntax: targets, a colon, and prerequisites.
                words = _SEPARATOR.split(f"{rule} ".partition(": ")[2].strip())
                found.update(filter(None, words))
    paths = set()
    for name in found:
        name = name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$")
        path = os.path.join(folder, name)  # noqa: PTH118 - performance: many files
        # The component before ".." may be a link.
        paths.add(Path(os.path.realpath(path) if ".." in name else os.path.normpath(path)))
    return paths


def _words(solution: Solution) -> list[str]:
    options = checked_options(solution)
    flags = [*options.cflags, *options.cuda_cflags, *options.ldflags]
    split = (flag.split(",") if flag.startswith(("-W", "-X")) else [flag] for flag in flags)
    return [word for words in split for word in words]


def _path_in(word: str) -> str:
    found = _PATH.match(word)
    return os.path.normpath(found.group(1)) if found else ""


def _named_files(words: Iterable[str]) -> Iterator[Path]:
    """Yield the files that flags name by absolute paths, and the static libraries of ``-l``.

    Libraries that are loaded at run time are not part of the result.
    """
    folders: list[str] = []
    libraries: list[str] = []
    before = ""
    for word in words:
        path = _path_in(word)
        if path and (word.startswith(("-L", "--library-path=")) or before == "-L"):
            folders.append(path)
        elif path and not _SHARED.search(word) and os.path.isfile(path):  # noqa: PTH113
            yield Path(path)
        elif before == "-l" or (word.startswith("-l") and word != "-l"):
            libraries.append(word if before == "-l" else word[2:])
        before = word
    folders += environment.compiler_variables().get("LIBRARY_PATH", "").split(os.pathsep)
    for name in libraries:
        wanted = name[1:] if name.startswith(":") else f"lib{name}.a"
        places = (Path(folder) / wanted for folder in folders if folder.startswith("/"))
        static = next((place for place in places if place.is_file()), None)
        if static is not None and not _SHARED.search(wanted):
            yield static


def describe_headers(paths: Iterable[Path], *, since_ns: int, until_ns: int) -> dict[str, Header]:
    """Return size, time and digest of headers and other files that a build reads.

    Parameters
    ----------
    paths : iterable of Path
        The files.
    since_ns, until_ns : int
        Time span of the compilation. If a file was changed within it, the compiled version is
        unknown; such a file is described so that it always counts as changed, and is compiled
        again.
    """
    described: dict[str, Header] = {}
    for path in paths:
        described[str(path)] = (0, 0, "")
        with suppress(OSError):  # already removed
            status = path.stat()
            if not since_ns <= status.st_mtime_ns <= until_ns:
                described[str(path)] = (status.st_size, status.st_mtime_ns, sha256_of(path))
    return described


def headers_sound(headers: Mapping[str, Header]) -> bool:
    """Return whether files outside a build's folder match the result of `describe_headers`."""
    try:
        for path, (size, changed, digest) in headers.items():
            status = os.stat(path)  # noqa: PTH116 - performance: many files
            same = status.st_mtime_ns == changed or sha256_of(Path(path)) == digest
            if status.st_size != size or not same:
                return False
    except OSError:
        return False
    return True

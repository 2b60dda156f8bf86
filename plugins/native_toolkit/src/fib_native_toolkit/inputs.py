"""What a build has read outside of its own folder: headers, and files that flags name.

Where these are is no part of a build's key, and what is in them may change under the same path. So
each is recorded with its digest, and looked at whenever the build is used; see `describe_headers`.

One change cannot be seen: a new header in a folder that is searched before the one from which a
header of that name was taken. The old one is still as it was.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_native_toolkit.dependencies import LIBRARY_VARIABLES
from fib_native_toolkit.ninja import read_dependencies
from fib_native_toolkit.options import checked_options
from flashinfer_bench import env
from flashinfer_bench.compile.cache import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.data import Solution

Header = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, SHA-256."""

_SHARED = re.compile(r"\.so(\.[\d.]+)?$")
# ``-Wl,-T,/x``, ``-fprofile-use=/x``, ``-I/x``, ``@/x``: where in a flag a path may begin.
_PATH = re.compile(r"^(?:@|-[A-Za-z-]+|[^/]*[=:])?(/.*)$")
_SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_DEEPEST = 8


def files_read(folder: Path, solution: Solution, versioned_roots: Iterable[Path]) -> list[Path]:
    """Return the files outside of a build's folder that were read to make it.

    Parameters
    ----------
    folder : Path
        Where compilers have left their depfiles.
    solution : Solution
        What was built. Its flags name objects, static libraries, response files and the like.
    versioned_roots : iterable of Path
        Folders whose files are left out, wherever links to them are.

    Returns
    -------
    list of Path
        Sorted.
    """
    options = checked_options(solution)
    flags = [*options.cflags, *options.cuda_cflags, *options.ldflags]
    words = list(_words(flags))
    searched = [*_named_folders(words), *map(Path, options.include_paths), *_folders_of_variables()]
    headers = _as_searched(read_dependencies(folder), searched)
    candidates = {*headers, *_named_files(words)}
    real = cache(os.path.realpath)  # thousands of files are in few folders
    known = tuple(f"{real(root)}{os.sep}" for root in (folder, *versioned_roots))
    return sorted(
        path
        for path in candidates
        if folder not in path.parents
        and not f"{real(path.parent)}{os.sep}{path.name}".startswith(known)
    )


def _as_searched(headers: Iterable[Path], searched: Iterable[Path]) -> Iterator[Path]:
    """Yield headers by the paths under which they were searched for.

    Of a header found through a link, GCC writes where the link leads to. A link that leads
    elsewhere the next time would not be noticed.
    """
    links = {}
    for folder in searched:
        real = os.path.realpath(folder)
        if folder.is_absolute() and real != str(folder):
            links[folder] = f"{real}{os.sep}"
    for header in headers:
        path = str(header)
        found = [link / path[len(r) :] for link, r in links.items() if path.startswith(r)]
        yield from found or [header]


def _folders_of_variables() -> Iterator[Path]:
    """Yield the folders that variables tell compilers, or builders, to look for headers in."""
    variables = env.compiler_variables()
    for name in _SEARCHED:
        yield from map(Path, filter(None, variables.get(name, "").split(os.pathsep)))
    yield from (root for _, root in env.library_roots(*LIBRARY_VARIABLES))


def _words(flags: Sequence[str], depth: int = 0) -> Iterator[str]:
    """Yield the parts of flags; of a response file, also those of the flags in it."""
    for flag in flags:
        yield from flag.split(",") if flag.startswith(("-W", "-X")) else [flag]
        if flag.startswith("@/") and depth < _DEEPEST:
            yield from _words(_in_response_file(flag[1:]), depth + 1)


def _in_response_file(path: str) -> list[str]:
    try:
        return shlex.split(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):  # the compiler has read it, or said that it cannot
        return []


def _named_folders(words: Iterable[str]) -> Iterator[Path]:
    for word in words:
        found = _PATH.match(word)
        if found and os.path.isdir(found.group(1)):  # noqa: PTH112 - a string of any content
            yield Path(os.path.normpath(found.group(1)))


def _named_files(words: Iterable[str]) -> Iterator[Path]:
    """Yield the files that flags name by absolute paths, and the static libraries of ``-l``.

    Libraries that are loaded at run time are no part of the result.
    """
    folders: list[str] = []
    libraries: list[str] = []
    before = ""
    for word in words:
        found = _PATH.match(word)
        if found and (word.startswith(("-L", "--library-path=")) or before == "-L"):
            folders.append(found.group(1))
        elif found and not _SHARED.search(word) and os.path.isfile(found.group(1)):  # noqa: PTH113
            yield Path(os.path.normpath(found.group(1)))
        elif word.startswith("-l") and word != "-l":
            libraries.append(word[2:])
        elif before == "-l":
            libraries.append(word)
        before = word
    searched = env.compiler_variables().get("LIBRARY_PATH", "").split(os.pathsep)
    folders += [path for path in searched if path.startswith("/")]
    for name in libraries:
        static = _static_library(name, folders)
        if static is not None:
            yield static


def _static_library(name: str, folders: Iterable[str]) -> Optional[Path]:
    """Return the static library that the linker finds first, if it is one."""
    wanted = name[1:] if name.startswith(":") else f"lib{name}.a"
    for folder in map(Path, folders):
        if (folder / wanted).is_file():
            return None if _SHARED.search(wanted) else folder / wanted
    return None


def describe_headers(paths: Iterable[Path], *, since_ns: int, until_ns: int) -> dict[str, Header]:
    """Return size, time and digest of headers, and of other files that a build reads.

    Parameters
    ----------
    paths : iterable of Path
        The files.
    since_ns, until_ns : int
        When they were compiled. Of one that was changed within that time nobody knows what was
        compiled; it is described as different from whatever it is, so that it is compiled again.
    """
    described: dict[str, Header] = {}
    for path in paths:
        described[str(path)] = (0, 0, "")
        with suppress(OSError):  # gone already
            status = path.stat()
            if not since_ns <= status.st_mtime_ns <= until_ns:
                described[str(path)] = (status.st_size, status.st_mtime_ns, sha256_of(path))
    return described


def headers_sound(headers: Mapping[str, Header]) -> bool:
    """Return whether files outside of a build's folder are as `describe_headers` found them."""
    return all(_unchanged(path, *header) for path, header in headers.items())


def _unchanged(path: str, size: int, changed: int, digest: str) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116 - there may be many
        if status.st_size != size:
            return False
        return status.st_mtime_ns == changed or sha256_of(Path(path)) == digest
    except OSError:
        return False

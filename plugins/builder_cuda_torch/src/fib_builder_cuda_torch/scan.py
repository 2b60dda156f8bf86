"""What the sources of a solution tell before a compiler has seen them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import Solution

MODULE_NAME = "TORCH_EXTENSION_NAME"
"""The macro that stands for the name which a library must give to its module or operators."""

CUDA_SUFFIXES = frozenset({".cu"})
COMPILED_SUFFIXES = frozenset({".cpp", ".cc", ".cxx", ".c++", ".C", ".c"}) | CUDA_SUFFIXES

_CUDA_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](cuda|cublas|cudnn|cub/|thrust/|(ATen|c10)/(cuda|cudnn)/)",
    re.MULTILINE,
)
_UNEXPANDED = f"\0{MODULE_NAME}\0".encode()
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", re.MULTILINE)
_OPERATORS = re.compile(r"TORCH_LIBRARY|RegisterOperators")
_LIBRARY = re.compile(r"\b((?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?)\s*\(\s*(\w+)")


def compiled_sources(solution: Solution) -> tuple[str, ...]:
    """Return the paths of the files to compile, in the solution's order; headers are not.

    Raises
    ------
    BuildError
        If the entry file is not among them.
    """
    paths = tuple(s.path for s in solution.sources if _suffix(s.path) in COMPILED_SUFFIXES)
    entry = solution.get_entry_path()
    if _suffix(entry) not in COMPILED_SUFFIXES:
        raise BuildError(
            f"solution {solution.name!r}: the entry file of a {solution.spec.language} solution "
            f"must be compiled ({', '.join(sorted(COMPILED_SUFFIXES))}), which {entry!r} is not"
        )
    return paths


def is_cuda(path: str) -> bool:
    """Return whether a file is for nvcc."""
    return _suffix(path) in CUDA_SUFFIXES


def includes_cuda(solution: Solution) -> bool:
    """Return whether a file includes a header of CUDA, or of the parts of torch that need it."""
    return any(_CUDA_HEADER.search(source.content) for source in solution.sources)


def registers_operators(solution: Solution) -> bool:
    """Return whether loading the library registers operators with torch."""
    return any(_OPERATORS.search(_code(source.content)) for source in solution.sources)


def check_names(solution: Solution) -> None:
    """Refuse operators under a name of the solution's own.

    torch takes each name once for a process, and ends the process at the second time: two
    solutions, or two versions of one, could never be loaded side by side.

    Raises
    ------
    BuildError
        If ``TORCH_LIBRARY`` or one of its relatives has another name than the macro's.
    """
    for path, macro, name in _named_libraries(solution):
        raise BuildError(
            f"solution {solution.name!r}: {path}: {macro}({name}, …) registers its operators under "
            "a name of its own, which a process can do only once",
            hint=f"Write {macro}({MODULE_NAME}, …).",
        )


def check_namespace(library: Path, solution: Solution) -> None:
    """Refuse a library whose operators are not called after the macro's value, but the macro.

    Old releases of torch take the first argument of ``TORCH_LIBRARY`` as it is written.

    Raises
    ------
    BuildError
        If that has happened.
    """
    if registers_operators(solution) and _UNEXPANDED in library.read_bytes():
        raise BuildError(
            f"solution {solution.name!r}: this torch calls the operators {MODULE_NAME!r} instead "
            "of what that stands for",
            hint="#define LIBRARY(name, m) TORCH_LIBRARY(name, m), "
            f"and write LIBRARY({MODULE_NAME}, m).",
        )


def _named_libraries(solution: Solution) -> Iterator[tuple[str, str, str]]:
    codes = {source.path: _code(source.content) for source in solution.sources}
    macros = {
        name: value.strip() for code in codes.values() for name, value in _DEFINE.findall(code)
    }
    for path, code in codes.items():
        for macro, name in _LIBRARY.findall(_DEFINE.sub("", code)):
            if macros.get(name, name) != MODULE_NAME:
                yield path, macro, name


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix


def _code(text: str) -> str:
    """Return `text` without comments and strings, and with continued lines joined."""
    return _NOISE.sub(" ", text).replace("\\\n", " ")

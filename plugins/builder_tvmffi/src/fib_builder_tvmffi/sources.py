"""Which of a solution's files are compiled, and by what."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from flashinfer_bench.data import SupportedLanguages
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

KINDS = {".c": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".cu": "cuda"}
"""Suffixes of the files that are compiled; all others are there to be included, or read."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_LIBRARIES = {
    "cublas": re.compile(r"cublas\w*\.h"),
    "cudnn": re.compile(r"cudnn\w*\.h"),
    "cutlass": re.compile(r"(cutlass|cute)/.+"),
}


def kind_of(path: str) -> str:
    """Return what a file is compiled as, ``c``, ``cpp`` or ``cuda``; empty if it is not."""
    return KINDS.get(PurePosixPath(path).suffix.lower(), "")


def compiled_files(solution: Solution) -> tuple[str, ...]:
    """Return the paths of the files to compile, sorted, so that their order tells nothing.

    Raises
    ------
    BuildError
        If the entry file is none of them, or the entry symbol cannot be the name of a function.
    """
    entry, symbol = solution.get_entry_path(), solution.get_entry_symbol()
    if not kind_of(entry):
        raise BuildError(
            f"solution {solution.name!r}: the entry file {entry!r} is no source file",
            hint=f"It must end in one of {', '.join(KINDS)}, and export the entry symbol.",
        )
    if not symbol.isidentifier():
        raise BuildError(
            f"solution {solution.name!r}: the entry symbol {symbol!r} cannot be the name of an "
            "exported function",
            hint="Write the first argument of TVM_FFI_DLL_EXPORT_TYPED_FUNC: letters, digits, '_'.",
        )
    return tuple(sorted(source.path for source in solution.sources if kind_of(source.path)))


def uses_cuda(solution: Solution) -> bool:
    """Return whether the CUDA toolkit is needed, be it for its headers alone."""
    return solution.spec.language == SupportedLanguages.CUDA or any(
        kind_of(source.path) == "cuda" for source in solution.sources
    )


def included_libraries(solution: Solution) -> list[str]:
    """Return those of cuBLAS, cuDNN and CUTLASS whose headers a source includes.

    Many solutions do not declare them: without a check at link time, what torch had loaded served.
    """
    names = {name for source in solution.sources for name in _INCLUDE.findall(source.content)}
    return [
        library
        for library, header in _LIBRARIES.items()
        if any(header.fullmatch(name) for name in names)
    ]

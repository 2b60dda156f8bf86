"""What the sources of a solution tell before a compiler has seen them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

MODULE_NAME = "TORCH_EXTENSION_NAME"
"""The macro that stands for the name which a library must give to its module or operators."""

KINDS = {
    **dict.fromkeys((".cpp", ".cc", ".cxx", ".c++", ".C", ".c"), "cpp"),
    ".cu": "cuda",
}
"""Suffixes of the files that are compiled, and as what."""

_CUDA_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](cuda|cublas|cudnn|cub/|thrust/|(ATen|c10)/(cuda|cudnn)/)",
    re.MULTILINE,
)
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", re.MULTILINE)
_LIBRARY = re.compile(r"\b((?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?)\s*\(\s*(\w+)")


def includes_cuda(solution: Solution) -> bool:
    """Return whether a file includes a header of CUDA, or of the parts of torch that need it."""
    return any(_CUDA_HEADER.search(source.content) for source in solution.sources)


def check_names(solution: Solution) -> None:
    """Refuse operators under a name of the solution's own.

    torch takes each name once for a process, and ends the process at the second time: two
    solutions, or two versions of one, could never be loaded side by side.

    Raises
    ------
    BuildError
        If ``TORCH_LIBRARY`` or one of its relatives has another name than the macro's.
    """
    codes = {source.path: _code(source.content) for source in solution.sources}
    macros = {
        name: value.strip() for code in codes.values() for name, value in _DEFINE.findall(code)
    }
    for path, code in codes.items():
        for macro, name in _LIBRARY.findall(_DEFINE.sub("", code)):
            if macros.get(name, name) != MODULE_NAME:
                raise BuildError(
                    f"solution {solution.name!r}: {path}: {macro}({name}, …) registers its "
                    "operators under a fixed name, which a process can do only once",
                    hint=f"Write {macro}({MODULE_NAME}, …).",
                )


def _code(text: str) -> str:
    """Return `text` without comments and strings, and with continued lines joined."""
    return _NOISE.sub(" ", text).replace("\\\n", " ")

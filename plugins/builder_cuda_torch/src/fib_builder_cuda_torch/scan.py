"""Checks of a solution's sources before compilation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

MODULE_NAME = "TORCH_EXTENSION_NAME"
"""The macro for the name that a library must give to its module or operators."""

KINDS = {
    **dict.fromkeys((".cpp", ".cc", ".cxx", ".c++", ".C", ".c"), "cpp"),
    ".cu": "cuda",
}
"""Suffixes of the files that are compiled, and their language."""

_CUDA_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](cuda|cublas|cudnn|cub/|thrust/|(ATen|c10)/(cuda|cudnn)/)",
    re.MULTILINE,
)
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(.*)$", re.MULTILINE)
_LIBRARY = re.compile(r"\b((?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?)\s*\(\s*(\w+)")


def includes_cuda(solution: Solution) -> bool:
    """Return whether a file includes headers of CUDA, or headers of torch that need CUDA."""
    return any(_CUDA_HEADER.search(source.content) for source in solution.sources)


def check_names(solution: Solution) -> None:
    """Reject operators that are registered under a fixed name.

    torch accepts each name once per process and aborts the process on a second registration: two
    solutions, or two versions of one, could never be loaded together.

    Raises
    ------
    BuildError
        If ``TORCH_LIBRARY`` or a related macro uses a name other than the required macro.
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

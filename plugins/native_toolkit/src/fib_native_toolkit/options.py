"""What a solution's own options and sources tell about how to compile it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.compile.builder import SOURCES
from flashinfer_bench.data import CompileOptions, SupportedBindings
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution

_FLAGS = ("cflags", "cuda_cflags", "ldflags")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PATHS = "Relative include paths are looked for in the solution's folder; others are absolute."
_QUOTES = "Flags are split as a shell does it; put quotes around what belongs together."
_TORCH = re.compile(
    r"\b(PYBIND11_MODULE|TORCH_LIBRARY|TORCH_LIBRARY_IMPL|TORCH_LIBRARY_FRAGMENT)\b"
    r"|\btorch/(extension|library|all|torch)\.h\b|\btorch/csrc/"
)
_TVM_FFI = re.compile(r"\bTVM_FFI_DLL_EXPORT")


def checked_options(solution: Solution, folder: Optional[Path] = None) -> CompileOptions:
    """Return a solution's compile options, after a look at whether they can be used.

    Parameters
    ----------
    solution : Solution
        May have none; then those that are returned are empty.
    folder : Path, optional
        The build's folder. If it is given, relative include paths are joined to ``sources`` in it.

    Returns
    -------
    CompileOptions
        What to give to the compilers. Flags are split as a shell does it, since people write
        ``-gencode arch=…`` as one: each is then exactly one argument.

    Raises
    ------
    BuildError
        If an include path leaves the solution's folder, or a flag has a control character or a
        quote that is never closed.
    """

    def refused(field: str, value: str, reason: str, hint: str) -> BuildError:
        message = f"solution {solution.name!r}: compile_options.{field}: {value[:300]!r} {reason}"
        return BuildError(message, hint=hint)

    options = solution.spec.compile_options or CompileOptions()
    changed: dict[str, list[str]] = {field: [] for field in _FLAGS}
    for field in (*_FLAGS, "include_paths"):
        for value in getattr(options, field):
            if _CONTROL.search(value):
                raise refused(field, value, "has a control character or a line break", _PATHS)
            if field in _FLAGS:
                try:
                    changed[field] += shlex.split(value)
                except ValueError as error:
                    raise refused(field, value, f"has {str(error).lower()}", _QUOTES) from None
            elif not value.startswith("/") and ".." in PurePosixPath(value).parts:
                raise refused(field, value, "leaves the solution's folder", _PATHS)
    if folder is not None:
        paths = [str(folder / SOURCES / path) for path in options.include_paths]
        changed["include_paths"] = paths
    return options.model_copy(update=changed)


def guess_binding(solution: Solution) -> str:
    """Return how compiled code of this solution is called.

    Parameters
    ----------
    solution : Solution
        One in C++ or CUDA.

    Returns
    -------
    str
        The binding that it declares. Without one the format means ``tvm-ffi``; yet solutions that
        are older than that rule use torch's, so a look at the sources decides.
    """
    if solution.spec.binding:
        return str(solution.spec.binding)
    text = "\n".join(source.content for source in solution.sources)
    if _TORCH.search(text) and not _TVM_FFI.search(text):
        return SupportedBindings.TORCH.value
    return SupportedBindings.TVM_FFI.value

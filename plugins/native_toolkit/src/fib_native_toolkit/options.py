"""Read and validate a solution's compile options, and guess its binding from the sources."""

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
_PATHS = "Relative include paths are relative to the solution's folder."
_QUOTES = "Flags are split as in a shell; quote what belongs together."
# Options, also inside ``-Wl,`` or ``-Xcompiler=``, that make a compiler, assembler or linker run or
# load a file, or read further options from it.
_OTHER_CODE = re.compile(
    r"(?:^|[=,\s])(@|-B|-wrapper|--?run(?:-args)?(?=[=,\s]|$)|--?specs|--prefix|-f(?:pass-)?plugin"
    r"|-iplugindir|--?plugin|-add-plugin|--?load(?:-pass-plugin)?(?=[=,\s]|$)|-fmodule-mapper"
    r"|-fuse-ld=(?!\w+(?:[,\s]|$))|--?optf|--options-file|--?ccbin|--compiler-bindir|--?arbin"
    r"|--archiver-binary|--config|-ccc-|--?gcc-(?:toolchain|install-dir|triple)|--\w+-arch-tool"
    r"|--(?:ld|linker|cuda|ptxas|hip|rocm)-path|-[f-]thinlto-(?:distributor|remote)[\w-]*=)"
)
_TOOLS = (
    "The machine sets tools (CC, CXX, CUDA_HOME, NVCC_CCBIN); -fuse-ld=lld names a linker. Flags "
    "themselves go into compile_options; -Bsymbolic goes to the linker: -Wl,-Bsymbolic."
)
_SHELL = re.compile(r"[$`;|&<>(){}*?\[\]~'\"\\!#]")  # nvcc runs its tools through /bin/sh
_NO_SHELL = (
    "The only signs allowed for nvcc are . , : = + - _ / @ % ^ and blanks; define it in a source."
)
_TORCH = re.compile(
    r"\b(PYBIND11_MODULE|TORCH_LIBRARY|TORCH_LIBRARY_IMPL|TORCH_LIBRARY_FRAGMENT)\b"
    r"|\btorch/(extension|library|all|torch)\.h\b|\btorch/csrc/"
)
_TVM_FFI = re.compile(r"\bTVM_FFI_DLL_EXPORT")


def checked_options(solution: Solution, folder: Optional[Path] = None) -> CompileOptions:
    """Return a solution's compile options after validating them.

    Parameters
    ----------
    solution : Solution
        May have no options; then the result is empty.
    folder : Path, optional
        The build's folder. If given, relative include paths are joined to ``sources`` in it.

    Returns
    -------
    CompileOptions
        The arguments for the compilers. Flags are split like in a shell, because users write
        ``-gencode arch=…`` as one flag; each resulting item is exactly one argument.

    Raises
    ------
    BuildError
        If an include path leaves the solution's folder; if a flag has a control character or an
        unclosed quote, or makes a tool run, load or read options from another file; or if a shell
        would interpret an argument of nvcc.
    """
    options = solution.spec.compile_options or CompileOptions()
    changed: dict[str, list[str]] = {field: [] for field in _FLAGS}
    kernels = [source.path for source in solution.sources if source.path.lower().endswith(".cu")]
    for path in kernels:
        _check_for_shell(solution, "sources", path)
    for field in (*_FLAGS, "include_paths"):
        name = f"compile_options.{field}"
        for value in getattr(options, field):
            if _CONTROL.search(value):
                reason = "has a control character or a line break"
                raise _refused(solution, name, value, reason, _PATHS)
            if field in _FLAGS:
                words = _words_in(solution, name, value)
                changed[field] += words
                for word in words if field == "cuda_cflags" else ():
                    _check_for_shell(solution, name, word)
            elif not value.startswith("/") and ".." in PurePosixPath(value).parts:
                raise _refused(solution, name, value, "leaves the solution's folder", _PATHS)
            elif kernels:
                _check_for_shell(solution, name, value)
    if folder is not None:
        paths = [str(folder / SOURCES / path) for path in options.include_paths]
        changed["include_paths"] = paths
    return options.model_copy(update=changed)


def _words_in(solution: Solution, field: str, flags: str) -> list[str]:
    """Split `flags` like a shell; raise if a flag reaches for other programs."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        reason = f"has {str(error).lower()}"
        raise _refused(solution, field, flags, reason, _QUOTES) from None
    for word in words:
        # A linker reads this as "static" or "symbolic", a compiler as a folder of programs.
        linked = word.startswith("-Wl,") and not field.endswith("cuda_cflags")
        if found := _OTHER_CODE.search(word.replace(",-B", "") if linked else word):
            reason = f"has {found[1]!r}, which runs, loads or reads options from what it names"
            raise _refused(solution, field, word, reason, _TOOLS)
    return words


def _check_for_shell(solution: Solution, field: str, value: str) -> None:
    if sign := _SHELL.search(value):
        reason = f"has {sign[0]!r}, which the shell that nvcc starts would interpret"
        raise _refused(solution, field, value, reason, _NO_SHELL)


def _refused(solution: Solution, field: str, value: str, reason: str, hint: str) -> BuildError:
    return BuildError(f"solution {solution.name!r}: {field}: {value[:300]!r} {reason}", hint=hint)


def guess_binding(solution: Solution) -> str:
    """Return how compiled code of this solution is called.

    Parameters
    ----------
    solution : Solution
        A solution in C++ or CUDA.

    Returns
    -------
    str
        The declared binding. Without one the format specifies ``tvm-ffi``, but solutions older than
        that rule use torch's binding, so the sources decide.
    """
    if solution.spec.binding:
        return str(solution.spec.binding)
    text = "\n".join(source.content for source in solution.sources)
    if _TORCH.search(text) and not _TVM_FFI.search(text):
        return SupportedBindings.TORCH.value
    return SupportedBindings.TVM_FFI.value

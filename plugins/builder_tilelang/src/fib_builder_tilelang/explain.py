"""Telling the errors of TileLang's compiler from those of a running kernel.

Many solutions compile when they are first called, with the sizes of that call. TileLang raises
whatever comes up then, so what counts is where it was raised.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.compile.toolkit import causes, describe_exception, first_error
from flashinfer_bench.errors import BuildCapabilityError, BuildError

if TYPE_CHECKING:
    from types import FrameType

    from flashinfer_bench.data import Solution

# Functions of tilelang.jit that are left before a kernel runs.
_COMPILING = frozenset(
    {"compile", "par_compile", "get_tir", "initialize_jit_mode", "_infer_jit_mode"}
)
_NO_GPU = (
    "TileLang finds no GPU to compile for",
    "Name a target: @tilelang.jit(target={'kind': 'cuda', 'arch': 'sm_90a'}), or target='c' "
    "for the CPU.",
)
_LACKING = {
    "No registered target detector": _NO_GPU,
    # What it takes for target="cuda" where it finds no GPU, and new releases of nvcc refuse.
    "Unsupported gpu architecture 'sm_50'": _NO_GPU,
    "Cannot find hipcc": ("TileLang finds no hipcc", "Install ROCm, or set ROCM_PATH."),
    "requires a C++ compiler": ("TileLang finds no C++ compiler", "Install g++, or set CXX."),
    "Failed to automatically detect CUDA": (
        "TileLang finds no CUDA toolkit",
        "Install nvcc, or set CUDA_HOME.",
    ),
}
_NVCC = "Compilation error:\n"
_HOST = "Compilation Failed! ["
_LONGEST = 600


class Explainer:
    """Turns an error of a call into a `BuildError` if it was raised while TileLang compiled.

    Parameters
    ----------
    solution : Solution
        What is called.
    root : Path
        Folder of its sources.
    """

    def __init__(self, solution: Solution, root: Path) -> None:
        self._name = solution.name
        self._root = root

    def __call__(self, error: BaseException) -> Optional[BuildError]:
        """Return what to raise in place of `error`, or None if no kernel was being compiled.

        Parameters
        ----------
        error : BaseException
            What a call raised. An error that it was raised from counts as well.

        Returns
        -------
        BuildError or None
            Its log holds the traceback, with the compiler's output and the code that was generated.
            It is a `BuildCapabilityError` if this machine lacks what the compiler needs.
        """
        for cause in causes(error):
            frames = list(traceback.walk_tb(cause.__traceback__))
            # A full disk, say; an OSError without a number is a symbol that cannot be linked.
            unrelated = isinstance(cause, MemoryError) or getattr(cause, "errno", None) is not None
            if unrelated or not any(_belongs_to_compiler(frame) for frame, _ in frames):
                continue
            files = [(Path(frame.f_code.co_filename), line) for frame, line in frames]
            inside = [
                f"{file.relative_to(self._root).as_posix()}:{line}: "
                for file, line in files
                if file.is_relative_to(self._root)
            ]
            text, kind = str(cause), type(cause).__name__
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            reason = compiler_says(text) or (f"{kind}: {lines[0][:_LONGEST]}" if lines else kind)
            return as_build_error(
                f"solution {self._name!r}: compiling the kernel failed: "
                f"{inside[-1] if inside else ''}{reason}",
                describe_exception(error, self._root)[1],
            )
        return None


def compiler_says(text: str) -> str:
    """Return why the code that TileLang has generated does not compile; empty if that is not it.

    Parameters
    ----------
    text : str
        The message of an exception, or a traceback that ends in it.
    """
    _, of_nvcc, output = text.partition(_NVCC)
    if of_nvcc:
        return f"the generated code does not compile: {first_error(output)}"
    if _HOST in text:
        return "the generated code does not compile; see the compiler output on standard error"
    return ""


def as_build_error(message: str, log: str) -> BuildError:
    """Return the error, which is another one if `log` shows that this machine lacks something."""
    for sign, (reason, hint) in _LACKING.items():
        if sign in log:
            where = message.partition(": ")[0]
            return BuildCapabilityError(f"{where}: {reason}", hint=hint, log=log)
    return BuildError(message, log=log)


def _belongs_to_compiler(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    if module == "tilelang.jit":
        return frame.f_code.co_name in _COMPILING
    return module.startswith("tilelang.language.")

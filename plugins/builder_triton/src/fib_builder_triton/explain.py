"""Distinguish errors of Triton's compiler from errors of a running kernel.

Triton compiles a kernel on its first launch, so mistakes in its source appear during a call. This
module imports nothing of Triton: if an error comes from Triton, it is already imported.
"""

from __future__ import annotations

import errno
import subprocess
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.compile.toolkit import causes, describe_exception, first_error
from flashinfer_bench.errors import BuildCapabilityError, BuildError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from flashinfer_bench.data import Solution

_LAUNCHER_HINT = (
    "Triton compiles its launchers with a C compiler and Python's headers: install gcc and "
    "python3-dev, or set CC."
)
_STORAGE_HINT = "Make room, or set TRITON_CACHE_DIR and TMPDIR to folders on another disk."
_FULL = ("No space left on device", "Disk quota exceeded")
# Exceptions of a compiler that do not mean that the kernel is wrong.
_NO_FAULT = (OSError, MemoryError, Warning)


class CacheError(BuildError, StorageError):
    """Triton could not store compiled code; not a fault of the solution."""


def explain(solution: Solution, root: Path, error: BaseException) -> Optional[BuildError]:
    """Return the error to raise instead of `error`, or None if it is not a compiler error.

    Parameters
    ----------
    solution : Solution
        The solution that was called.
    root : Path
        Folder of its sources.
    error : BaseException
        The exception of a call. Its explicit causes are examined, too.

    Returns
    -------
    BuildError or None
        Its message gives the location and the mistake; its log has the source line and caret that
        Triton prints. It is a `BuildCapabilityError` if Triton's launcher cannot be compiled here,
        and also a `StorageError` if there is no space for compiled code.
    """
    kind: type[BuildError] = BuildError
    for cause in causes(error):
        hint = None
        if _is_storage(cause):
            reason = f"Triton cannot store what it compiles: {first_error(str(cause))}"
            kind, hint = CacheError, _STORAGE_HINT
        elif _is_launcher(cause):  # none of whose code belongs to the solution
            reason = f"compiling Triton's launcher failed: {first_error(str(cause))}"
            kind, hint = BuildCapabilityError, _LAUNCHER_HINT
        else:
            reason = _reason(cause, solution, root)
        if reason:
            log = describe_exception(error, root)[1]
            return kind(f"solution {solution.name!r}: {reason}", hint=hint, log=log)
    return None


def _reason(error: BaseException, solution: Solution, root: Path) -> str:
    if _is_triton(error, "CompilationError"):
        return f"compiling the kernel failed: {_refusal(error, solution)}"
    if _is_triton(error, "OutOfResources"):
        return f"the kernel does not fit on the GPU: {error}"
    if _is_triton(error, "PTXASError"):
        return f"ptxas failed: {first_error(str(error))}"
    if _is_triton(error, "InterpreterError"):
        return _interpreted(error, root)
    if isinstance(error, _NO_FAULT):
        return ""
    if any(_is_compiler(frame) for frame in _frames(error)):
        return f"compiling the kernel failed: {type(error).__name__}: {first_error(str(error))}"
    return ""


def _refusal(error: BaseException, solution: Solution) -> str:
    """Return location and reason of the innermost of nested errors, one per function call."""
    nested: list[Any] = [e for e in causes(error) if _is_triton(e, "CompilationError")]
    place = ""
    for each in nested:
        # Triton's line numbers count from the "def". Misuse of Triton's library is reported inside
        # the library, where no file belongs to the solution.
        line = getattr(each.node, "lineno", None)
        for source in solution.sources:
            before, found, _ = source.content.partition(each.src.rstrip() if each.src else "\0")
            if found and line is not None:
                place = f"{source.path}:{before.count(chr(10)) + line}: "
                break
    lines = str(nested[-1].error_message or nested[-1]).splitlines()
    return place + next((line for line in lines if line.strip()), "no message")


def _interpreted(error: BaseException, root: Path) -> str:
    """Return the error if a compiler would have rejected the kernel as well, else ''."""
    inside = [e for e in causes(error) if not _is_triton(e, "InterpreterError")]
    frames = list(_frames(inside[0])) if inside else []
    if not frames or isinstance(inside[0], _NO_FAULT):
        return ""
    code = frames[-1].f_code
    own = Path(code.co_filename).is_relative_to(root)
    refused = (
        # The interpreter checks types and shapes with the same code as the compiler.
        _module(frames[-1]).startswith("triton.language")
        or code.co_name == "_new_static_assert"
        or (own and isinstance(inside[0], (NameError, AttributeError)))
    )
    reason = describe_exception(inside[0], root)[0]
    return f"compiling the kernel failed: {reason}" if refused else ""


def _is_triton(error: BaseException, name: str) -> bool:
    """Return whether `error` has Triton's class `name`, in whichever module this release has it."""
    return any(
        kind.__name__ == name and kind.__module__.partition(".")[0] == "triton"
        for kind in type(error).__mro__
    )


def _is_storage(error: BaseException) -> bool:
    """Return whether Triton's cache is not writable, or Triton found a full disk."""
    if _is_triton(error, "PTXASError"):
        return any(sign in str(error) for sign in _FULL)
    if not isinstance(error, OSError):
        return False
    frames = list(_frames(error))
    if any(_module(frame) == "triton.runtime.cache" for frame in frames):
        return True
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full and any(_is_compiler(f) or _module(f) == "triton.runtime.build" for f in frames)


def _is_launcher(error: BaseException) -> bool:
    # The last two: CC names a folder, or a file that is not executable.
    kinds = (RuntimeError, subprocess.CalledProcessError, FileNotFoundError, PermissionError)
    modules = map(_module, _frames(error))
    return isinstance(error, kinds) and "triton.runtime.build" in modules


def _is_compiler(frame: FrameType) -> bool:
    module = _module(frame)
    if module == "triton.compiler.compiler":
        # The same file loads compiled code, which can fail because of earlier work.
        return frame.f_code.co_name == "compile"
    return module.startswith("triton.backends.") and module.endswith(".compiler")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))

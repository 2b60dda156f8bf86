"""Where a plugin's code is called: what goes on to the caller, and how the rest is told.

A plugin may raise whatever it likes and must lose only itself. Not all that it raises is an
Exception: ``sys.exit()`` at import, or a panic in an extension written in Rust, is a BaseException.
So the few places that call a plugin's code pass on `PASSED_ON` and catch everything else.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from types import TracebackType

PASSED_ON = (KeyboardInterrupt, GeneratorExit)
"""What is not the plugin's doing."""

_LINE_LIMIT = 400
_TRACEBACK_LIMIT = 40_000

_HOST = str(Path(__file__).parent)
_LAZY = str(Path(__file__).parent.parent / "_lazy.py")


def one_line(error: BaseException) -> str:
    """Return type and message of `error` on one line of bounded length."""
    try:
        message = " ".join(str(error).split())
    except PASSED_ON:
        raise
    except BaseException:  # noqa: BLE001 - the __str__ of a plugin's exception is the plugin's code
        message = "(its message cannot be shown)"
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({message})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 1] + "…"


def full_traceback(error: BaseException) -> str:
    """Return the traceback of `error` from where our code ends, its middle cut if very long."""
    try:
        frames = _outside(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, frames))
    except PASSED_ON:
        raise
    except BaseException:  # noqa: BLE001 - as above: it may have a __cause__ that raises
        text = f"{type(error).__name__}: its traceback cannot be shown\n"
    if len(text) <= _TRACEBACK_LIMIT:
        return text
    half = _TRACEBACK_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _outside(frames: Optional[TracebackType]) -> Optional[TracebackType]:
    """Drop the frames of this package and of the import system that precede all others."""
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return (
        filename.startswith("<frozen importlib")
        or filename == _LAZY
        or (str(path.parent) == _HOST and path.name != "builtin.py")
        or path.parent.name == "importlib"
        or path.parts[-3:-1] == ("importlib", "metadata")
    )

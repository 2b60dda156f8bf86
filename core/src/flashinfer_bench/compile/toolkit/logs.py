"""Turning what a compiler or an import said into the message of a `BuildError`."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from types import TracebackType

_LONGEST_HEADLINE = 600

_ERROR_LINE = re.compile(
    r"\b(fatal )?error\b\s*(C\d+|#\d+(-D)?)?\s*:|\w+Error\b|\w+Exception\b"
    r"|undefined (reference|symbol)|: not found|No such file or directory|cannot find -l",
    re.IGNORECASE,
)


def first_error(log: str) -> str:
    """Return the line of a compiler's output that says what went wrong first.

    Parameters
    ----------
    log : str
        The whole output.

    Returns
    -------
    str
        The first line that looks like an error, else the last one that is not empty, shortened to
        600 characters.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    chosen = next((line for line in lines if _ERROR_LINE.search(line)), lines[-1] if lines else "")
    return shorten(chosen)


def shorten(text: str, limit: int = _LONGEST_HEADLINE) -> str:
    """Return `text` cut to `limit` characters, in one piece with a mark where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def build_failed(solution: str, what: str, log: str, *, hint: Optional[str] = None) -> BuildError:
    """Return a `BuildError` that begins with the first error of `log` and keeps all of it.

    Parameters
    ----------
    solution : str
        Name of the solution.
    what : str
        What failed: ``"nvcc"``, ``"linking"``, …
    log : str
        Everything that was printed.
    hint : str, optional
        What to do next.
    """
    message = f"solution {solution!r}: {what} failed: {first_error(log) or 'no message'}"
    return BuildError(message, hint=hint, log=log)


def describe_exception(error: BaseException, root: Path) -> tuple[str, str]:
    """Say where and why code below `root` raised.

    Parameters
    ----------
    error : BaseException
        What was raised.
    root : Path
        Folder of the code; places are given relative to it.

    Returns
    -------
    headline : str
        ``kernel.py:12: NameError: name 'x' is not defined``.
    log : str
        The traceback, without the frames above the code.
    """
    try:
        return _describe(error, root)
    except (Exception, SystemExit):  # noqa: BLE001 - the exception is the candidate's code, too
        return f"{type(error).__name__}, which cannot be shown", ""


def _describe(error: BaseException, root: Path) -> tuple[str, str]:
    place = _place(error, root)
    reason = traceback.format_exception_only(type(error), error)[-1].strip()
    log = "".join(
        traceback.format_exception(type(error), error, _first_frame_in(error.__traceback__, root))
    )
    headline = f"{place}: {reason}" if place else reason
    return shorten(headline), log.replace(f"{root}/", "")


def _place(error: BaseException, root: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        name = _relative(error.filename, root)
        if name:
            return f"{name}:{error.lineno}"
    inside = [
        (name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (name := _relative(frame.f_code.co_filename, root))
    ]
    return f"{inside[-1][0]}:{inside[-1][1]}" if inside else ""


def _first_frame_in(tb: Optional[TracebackType], root: Path) -> Optional[TracebackType]:
    while tb is not None and not _relative(tb.tb_frame.f_code.co_filename, root):
        tb = tb.tb_next
    return tb


def _relative(filename: str, root: Path) -> str:
    try:
        return Path(filename).relative_to(root).as_posix()
    except ValueError:
        return ""

"""Turning what a compiler or an import said into the message of a `BuildError`."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_HEADLINE = 600
_MOST_CAUSES = 100

# What compilers, assemblers and linkers put in front of an error, wherever it stands in the line.
_DIAGNOSTIC = re.compile(
    # file:12: file(12): (.text+0x5): file.o:file.cpp:function run:
    r"^(?:[^|]*?(?::\d+|\(\d+\)|\(\.[\w.]+\+0x[0-9a-f]+\)|:function [^:]+))\s?:"
    r".*?\b(?:error\b|undefined reference|multiple definition|catastrophic)"
    r"|^[^\s:|]+: (?:fatal |internal compiler )?(?:error|fatal)\b"  # c++: error: ld.lld: error:
    r"|^(?:nvcc|ptxas|nvlink|fatbinary|cudafe\+\+|cicc)\s+(?:.*,.*;\s*)?(?:fatal|error)\s*:"
    r"|^\S*\bld(?:\.\w+)?: (?!.*(?:warning:|note:|in function|skipping incompatible|DWARF error))",
    re.IGNORECASE,
)
_LOOKS_LIKE_ONE = re.compile(
    r"\b(fatal )?error\b\s*(C\d+|#\d+(-D)?|\[\w+\])?\s*:|\w+Error\b|\w+Exception\b"
    r"|undefined (reference|symbol)|: not found|No such file or directory|cannot find -l",
    re.IGNORECASE,
)
_WARNING = re.compile(r"(?:^|[:)] )(?:warning|note|remark)(?: #[\w-]+)?\s*:", re.IGNORECASE)
# What drivers say about the programs that they have started; those said more.
_SUMMARY = re.compile(r"^collect2: error: ld returned|^clang\S*: error: linker command failed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
# Commands, which ninja prints when they have run or failed, and what it says itself.
_NINJA = re.compile(
    r"^[ \t]*(\[\d+/\d+\] .*|FAILED: .*\n.*"
    r"|ninja: (build stopped|Entering directory|no work to do).*)$",
    re.MULTILINE,
)


def first_error(log: str) -> str:
    """Return the line of a compiler's output that says what went wrong first.

    What compilers mark as an error goes before what merely looks like one. Command lines that
    ninja prints are no errors, nor is its word that something failed.

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
    spoken = _NINJA.sub("", _COLOUR.sub("", log).replace("\r", ""))
    lines = [line.strip() for line in spoken.splitlines() if line.strip()]
    for pattern in (_DIAGNOSTIC, _LOOKS_LIKE_ONE):
        for line in lines:
            warning = _WARNING.search(line)
            # One that quotes the word "error", and so comes before it, is none.
            quoted = warning and not re.search("error", line[: warning.start()], re.IGNORECASE)
            if pattern.search(line) and not _SUMMARY.search(line) and not quoted:
                return shorten(line)
    return shorten(lines[-1] if lines else "")


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


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it was expressly raised from, outermost first."""
    cause: Optional[BaseException] = error
    for _ in range(_MOST_CAUSES):  # nothing keeps them from going round in a circle
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


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
    place, first, frame = "", None, error.__traceback__
    try:
        while frame is not None:
            name = _relative(frame.tb_frame.f_code.co_filename, root)
            if name:
                place, first = f"{name}:{frame.tb_lineno}", first or frame
            frame = frame.tb_next
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            name = _relative(error.filename, root)
            place = f"{name}:{error.lineno}" if name else place
        reason = traceback.format_exception_only(type(error), error)[-1].strip()
        log = "".join(traceback.format_exception(type(error), error, first))
    except (Exception, SystemExit):  # noqa: BLE001 - the exception is the candidate's code, too
        return f"{type(error).__name__}, which cannot be shown", ""
    headline = f"{place}: {reason}" if place else reason
    return shorten(headline), log.replace(f"{root}/", "")


def _relative(filename: str, root: Path) -> str:
    try:
        return Path(filename).relative_to(root).as_posix()
    except ValueError:
        return ""

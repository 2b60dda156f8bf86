"""What a failed evaluation died of, in one line taken from its log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_LOG = "(no log was recorded)"

_LONGEST = 160
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
# How programs name what went wrong: an exception stands at the end of its traceback, and the first
# error of a compiler is the one that the others follow from.
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_COMPILED = re.compile(r"\b(?:error|fatal)\b[^:]{0,20}:", re.I)
_NAMED = re.compile(r"\b(?:\w*error|\w*exception|fault|fatal|killed|timed out)\b", re.I)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])", re.I)


def cause(log: str) -> str:
    """Return the line of a log that says what went wrong, so that equal failures look equal.

    Parameters
    ----------
    log : str
        The log of a failed evaluation.

    Returns
    -------
    str
        The last exception, else the first error of a compiler, else the last line that speaks of
        an error, else the last line; addresses and free-standing numbers are replaced by ``#``. At
        most 160 characters.
    """
    lines = [line.strip() for line in _COLOUR.sub("", log[-20_000:]).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return NO_LOG
    line = (
        _first(_RAISED, reversed(lines))
        or _first(_COMPILED, lines)
        or _first(_NAMED, reversed(lines))
        or lines[-1]
    )
    line = _NUMBER.sub("#", _ADDRESS.sub("#", line[:1_000]))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    return next((line for line in lines if pattern.search(line[:1_000])), "")

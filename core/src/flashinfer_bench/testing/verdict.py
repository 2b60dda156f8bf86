"""How the kit says no: what is wrong, why it matters, and what to do about it."""

from __future__ import annotations

import textwrap
from typing import NoReturn

import pytest

_WIDTH = 96
_LONGEST = 4000


def fail(what: str, *, why: str, fix: str) -> NoReturn:
    """Fail the running test.

    Parameters
    ----------
    what : str
        What is wrong, and with which object; what was expected and what was found.
    why : str
        What goes wrong for users if it stays like this.
    fix : str
        What the author should do.
    """
    text = "\n".join([_shorten(what), _paragraph("why it matters", why), _paragraph("to do", fix)])
    # Neither traceback nor cause: where in the kit the check stands helps nobody.
    raise pytest.fail.Exception(text, pytrace=False) from None


def skip(reason: str) -> NoReturn:
    """Skip the running test, with a reason that ``pytest -ra`` prints."""
    pytest.skip(reason)


def require(condition: object, what: str, *, why: str, fix: str) -> None:
    """Fail the running test unless `condition` holds; see `fail`."""
    if not condition:
        fail(what, why=why, fix=fix)


def in_short(error: BaseException) -> str:
    """Return type and first line of an exception, for one line of a message."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def bullets(items: object, limit: int = 12) -> str:
    """Return one line for each of `items`, at most `limit`."""
    lines = [f"    - {item}" for item in (items if isinstance(items, (list, tuple)) else [items])]
    more = len(lines) - limit
    return "\n".join(lines[:limit] + ([f"    … and {more} more"] if more > 0 else []))


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _paragraph(label: str, text: str) -> str:
    return textwrap.fill(f"{label}: {text}", _WIDTH, initial_indent="  ", subsequent_indent="    ")

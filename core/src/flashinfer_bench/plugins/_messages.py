"""What users read of plugins: their errors on a line, tracebacks, and how things are called."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A plugin may raise whatever it likes and must lose only itself. Not all that it raises is an
# Exception: sys.exit() at import, or a panic in an extension written in Rust, is a BaseException.
# So the few places that call a plugin's code pass on these two, and catch everything else.
PASSED_ON = (KeyboardInterrupt, GeneratorExit)

_LINE_LIMIT = 400
_TRACEBACK_LIMIT = 40_000


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
    """Return the traceback of `error`, its end cut if very long."""
    try:
        text = "".join(traceback.format_exception(error))
    except PASSED_ON:
        raise
    except BaseException:  # noqa: BLE001 - as above: it may have a __cause__ that raises
        text = f"{type(error).__name__}: its traceback cannot be shown\n"
    return text[:_TRACEBACK_LIMIT]


def canonical(name: str) -> str:
    """Return `name` in the spelling in which names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def spoken(kind: str) -> str:
    """Return `kind` as one says it: ``key builder``."""
    return kind.replace("_", " ")


def in_words(items: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)

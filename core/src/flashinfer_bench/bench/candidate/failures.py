"""Exceptions of a solution as text: bounded, and safe whatever the exception does."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from flashinfer_bench.bench.transport.messages import MAX_TEXT, Failed, FailureClass, clip
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NAME = 256
"""Longest name in a reply, in characters."""

_MAX_MESSAGE = MAX_TEXT // 8
# The innermost ones tell most; a solution's own recursion can be a thousand deep.
_FRAMES = -40


def describe_failure(token: int, error: BaseException, *, fatal: bool = False) -> Failed:
    """Return the reply that tells of `error`.

    Parameters
    ----------
    token : int
        Of the request that failed.
    error : BaseException
        What was raised.
    fatal : bool
        Whether the process is of no further use.
    """
    kind = _said(lambda: type(error).__name__, "an exception without a name")
    message = _said(lambda: error, "the exception cannot be turned into text")
    trace = _said(lambda: _trace(error), "the traceback cannot be formatted")
    told = clip(kind, MAX_NAME), clip(message, _MAX_MESSAGE), clip(trace, MAX_TEXT)
    return Failed(token, *told, fatal, _about(error))


def _about(error: BaseException) -> FailureClass:
    """Tell what is the machine's fault from what is the solution's."""
    if isinstance(error, CapabilityError):  # first: some are build errors, too
        return "capability"
    if isinstance(error, StorageError):
        return "storage"
    return "build" if isinstance(error, BuildError) else "raised"


def _said(ask: Callable[[], object], otherwise: str) -> str:
    """Return what is told as text; the class is the solution's, and may raise anything."""
    try:
        return str(ask())
    except BaseException:  # noqa: BLE001 - see above
        return otherwise


def _trace(error: BaseException) -> str:
    """Format the traceback; for a failed build, what the builder says, compiler output included."""
    if isinstance(error, BuildError) and error.log:
        return str(error.log)
    lines = traceback.format_exception(type(error), error, error.__traceback__, _FRAMES)
    return "".join(lines)

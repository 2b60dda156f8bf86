"""Exceptions of a solution as text: bounded, and safe whatever the exception does."""

from __future__ import annotations

import traceback

from flashinfer_bench.bench.transport.messages import MAX_TEXT, Failed, FailureClass
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError

MAX_NAME = 256
"""Longest name in a reply, in characters."""

_MAX_MESSAGE = MAX_TEXT // 8
# The innermost ones tell most; a solution's own recursion can be a thousand deep.
_FRAMES = -40


def clip(text: str, limit: int) -> str:
    """Return `text` with at most `limit` characters, the middle left out, fit for UTF-8.

    Parameters
    ----------
    text : str
        Any text, lone surrogates included.
    limit : int
        Most characters of the result; at least 64.
    """
    if len(text) > limit:
        note = f"\n… {len(text) - limit} characters left out …\n"
        keep = limit - len(note)
        text = text[: keep - keep // 2] + note + text[len(text) - keep // 2 :]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean[:limit]


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
    message = clip(_message(error), _MAX_MESSAGE)
    trace = clip(_trace(error), MAX_TEXT)
    return Failed(token, clip(_kind(error), MAX_NAME), message, trace, fatal, _about(error))


def _about(error: BaseException) -> FailureClass:
    """Tell what is the machine's fault from what is the solution's."""
    if isinstance(error, CapabilityError):  # first: some are build errors, too
        return "capability"
    if isinstance(error, StorageError):
        return "storage"
    return "build" if isinstance(error, BuildError) else "raised"


def _kind(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:  # noqa: BLE001 - the class is the solution's, and may raise anything
        return "an exception without a name"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - idem
        return "the exception cannot be turned into text"


def _trace(error: BaseException) -> str:
    """Format the traceback; for a failed build, what the builder says, compiler output included."""
    try:
        if isinstance(error, BuildError) and error.log:
            return str(error.log)
        lines = traceback.format_exception(type(error), error, error.__traceback__, _FRAMES)
        return "".join(lines)
    except BaseException:  # noqa: BLE001 - idem
        return "the traceback cannot be formatted"

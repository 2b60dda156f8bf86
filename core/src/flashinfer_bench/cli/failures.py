"""From an exception to what the user reads, and to the exit code: decided here and only here."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

import typer

from flashinfer_bench import env, errors
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import talk

# The first class that fits decides, so narrower classes stand above wider ones.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (typer.Abort, ExitCode.INTERRUPTED),
    (BrokenPipeError, ExitCode.BROKEN_PIPE),
    (errors.ConfigError, ExitCode.USAGE),
    (errors.DatasetNotFoundError, ExitCode.USAGE),
    (errors.DataError, ExitCode.FINDINGS),
    (errors.BuildError, ExitCode.FINDINGS),
    (errors.CapabilityError, ExitCode.CAPABILITY),
    (errors.PluginError, ExitCode.CAPABILITY),
    (errors.StorageError, ExitCode.CAPABILITY),
    (errors.TimingError, ExitCode.CAPABILITY),
    (errors.RunnerError, ExitCode.CAPABILITY),
)


def exit_code_of(exc: BaseException) -> ExitCode:
    """Return the exit code that `exc` stands for.

    Parameters
    ----------
    exc : BaseException
        What ended the command.

    Returns
    -------
    ExitCode
        `ExitCode.INTERNAL` for whatever nobody raised on purpose.
    """
    if isinstance(exc, errors.SelectionError):
        return ExitCode.USAGE if exc.unknown else ExitCode.NOTHING_SELECTED
    if _is_usage_error(exc):
        return ExitCode.USAGE
    for kind, code in _CODES:
        if isinstance(exc, kind):
            return code
    if _is_full_output(exc):
        return ExitCode.CAPABILITY
    return ExitCode.INTERNAL


def report_failure(exc: BaseException) -> ExitCode:
    """Tell the user on stderr what went wrong and what to do next.

    Parameters
    ----------
    exc : BaseException
        What ended the command.

    Returns
    -------
    ExitCode
        The exit code to end with.
    """
    code = exit_code_of(exc)
    if code is ExitCode.BROKEN_PIPE:
        discard_output()
    elif code is ExitCode.INTERRUPTED:
        talk("interrupted")
    elif _is_usage_error(exc):
        _tell_usage(exc)
    elif _is_full_output(exc):
        discard_output()
        _tell(f"cannot write the output: {exc}", "make room where it goes")
    elif isinstance(exc, errors.FibError):
        _tell(_message(exc), exc.hint)
    else:
        _tell(f"internal error: {type(exc).__name__}: {exc}", _REPORT_IT)
    if _wants_traceback() and code is not ExitCode.BROKEN_PIPE:
        import traceback

        talk("".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).rstrip())
    return code


_REPORT_IT = "this is a bug; run it again with FIB_TRACEBACK=1 and report what it prints"


def discard_output() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    # A stdout without a descriptor, as tests set it, is never flushed at exit.
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def replace_closed_streams() -> None:
    """Point standard streams that were closed, as by ``fib >&-``, at nothing.

    Otherwise the next file to be opened would get the descriptor, and what is printed with it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _message(exc: errors.FibError) -> str:
    if isinstance(exc, errors.DataError) and exc.where:
        return f"{exc.where}: {exc.message}"
    return exc.message


def _tell(message: str, hint: str | None) -> None:
    talk(f"error: {message}")
    if hint:
        talk(f"hint: {hint}")


def _is_usage_error(exc: BaseException) -> bool:
    # The classes of typer's usage errors are private to it; this is how they can be told.
    return hasattr(exc, "format_message") and hasattr(exc, "exit_code")


def _is_full_output(exc: BaseException) -> bool:
    # A full disk below a dataset is a StorageError; a bare one is that of our standard output.
    return isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)


def _tell_usage(exc: BaseException) -> None:
    message = exc.format_message()  # type: ignore[attr-defined]
    if type(exc).__name__ == "NoArgsIsHelpError":
        talk(message)
        return
    context = getattr(exc, "ctx", None)
    _tell(message, f"try '{context.command_path} --help'" if context is not None else None)


def _wants_traceback() -> bool:
    import logging

    if logging.getLogger("flashinfer_bench").isEnabledFor(logging.DEBUG):
        return True
    try:
        return env.show_traceback()
    except ValueError:
        return True  # whatever FIB_TRACEBACK was set to, somebody wanted to see more

"""Entry point of ``fib``: the root command, and the mapping of errors to exit codes."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn, Optional

import typer

from flashinfer_bench import env, errors
from flashinfer_bench._lazy import old_names
from flashinfer_bench._version import __version__
from flashinfer_bench.cli.commands import LazyGroup
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import talk
from flashinfer_bench.errors import MISNAMED

__getattr__ = old_names(__name__)

_EPILOG = (
    "Exit codes: 0 done, 1 findings (invalid data, conflicts), 2 usage, 3 internal error, "
    "4 something missing on this machine, 5 nothing selected, 6 ambiguous, 130 interrupted."
)


class FibGroup(LazyGroup):
    """The root command, which reports every error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit silently if the reader of the output has closed it."""
        try:
            _check_environment()
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run a command line and, in `standalone_mode`, exit with a code of `ExitCode`."""
        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            result = super().main(*args, **options, standalone_mode=False)  # type: ignore[misc]
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as exc:  # noqa: BLE001 - the outermost boundary
            result = report_failure(exc)
        code = int(result) if isinstance(result, int) else ExitCode.OK
        if standalone_mode:
            sys.exit(code)
        return code


def _check_environment() -> None:
    """Report a malformed FIB_* variable as a usage error, before anything depends on it."""
    for read in (
        *(env.no_plugins, env.strict_plugins, env.probe_timeout_s, env.cpu_threads),
        *(env.cuda_arch_list, env.fsync_wanted, env.soft_dataset_locks, env.show_traceback),
    ):
        try:
            read()
        except ValueError as exc:
            hint = "set it to an allowed value, or unset it"
            raise errors.ConfigError(str(exc), hint=hint) from exc


app = typer.Typer(
    cls=FibGroup,
    name="fib",
    epilog=_EPILOG,
    # Plain help: drawing it with rich would double the time that --help takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashinfer-bench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(
        False,
        "--version",
        "-V",
        help="Print the version and exit.",
        is_eager=True,
        callback=_print_version,
    ),
) -> None:
    """Benchmark GPU kernels on real workloads, and put the best one to work."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(ExitCode.USAGE)


# ------------------------------------------------------- from an exception to an exit code

# The first entry that matches is used, so subclasses come before their bases.
_CODES: tuple[tuple[tuple[type[errors.FibError], ...], ExitCode], ...] = (
    ((errors.ConfigError, errors.DatasetNotFoundError), ExitCode.USAGE),
    ((errors.DataError, errors.BuildError), ExitCode.FINDINGS),
    ((errors.CapabilityError, errors.PluginError, errors.StorageError), ExitCode.CAPABILITY),
    ((errors.TimingError, errors.RunnerError), ExitCode.CAPABILITY),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def report_failure(exc: BaseException) -> ExitCode:
    """Print to stderr what went wrong and what to do next; return the exit code."""
    code, message, hint = explain(exc)
    if type(exc) is BrokenPipeError or (type(exc) is OSError and exc.errno in _FULL):
        discard_output()
    if code is ExitCode.BROKEN_PIPE:
        return code
    talk(message)
    if hint:
        talk(f"hint: {hint}")
    if _wants_traceback():
        import traceback

        talk("".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).rstrip())
    return code


def explain(exc: BaseException) -> tuple[ExitCode, str, Optional[str]]:
    """Return the exit code for an exception, with a message and a hint."""
    cause = exc.__cause__ if isinstance(exc, errors.PluginError) else exc
    if isinstance(cause, ModuleNotFoundError) and cause.name in ("fcntl", "pwd", "resource"):
        told = f"error: this command needs Linux or macOS ({cause})"
        return ExitCode.CAPABILITY, told, "on Windows, use WSL 2"
    if isinstance(exc, errors.FibError):
        where = exc.where if isinstance(exc, errors.DataError) else ""
        message = f"{where}: {exc.message}" if where else exc.message
        return _code_of(exc), f"error: {message}", exc.hint
    if isinstance(exc, (KeyboardInterrupt, typer.Abort)):
        return ExitCode.INTERRUPTED, "interrupted", None
    if isinstance(exc, BrokenPipeError):
        return ExitCode.BROKEN_PIPE, "", None
    # The classes of Typer's usage errors are private; they are recognised by their attributes.
    if hasattr(exc, "format_message") and hasattr(exc, "exit_code"):
        return ExitCode.USAGE, *_usage(exc)
    if isinstance(exc, OSError) and exc.errno in _FULL:  # of stdout: others are a StorageError
        hint = "free some space on the disk that it goes to"
        return ExitCode.CAPABILITY, f"error: cannot write the output: {exc}", hint
    if isinstance(exc, OSError) and exc.errno in (*MISNAMED, *_DENIED):
        message = f"error: {exc.filename}: {exc.strerror}"
        if exc.errno in MISNAMED:
            return ExitCode.USAGE, message, "name another path"
        hint = "change its permissions, or set FIB_CACHE_PATH to another folder"
        return ExitCode.CAPABILITY, message, hint
    hint = "this is a bug; run it again with FIB_TRACEBACK=1 and report what it prints"
    return ExitCode.INTERNAL, f"error: internal error: {type(exc).__name__}: {exc}", hint


def _code_of(error: errors.FibError) -> ExitCode:
    if isinstance(error, errors.SelectionError):
        return ExitCode.USAGE if error.unknown else ExitCode.NOTHING_SELECTED
    if isinstance(error, OSError) and error.errno in MISNAMED:
        return ExitCode.USAGE
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.INTERNAL)


def _usage(exc: Any) -> tuple[str, Optional[str]]:
    if like := getattr(exc, "possibilities", None):  # Typer lists all similar options, sorted
        exc.possibilities = get_close_matches(str(getattr(exc, "option_name", "")), like, n=1)
    message, context = exc.format_message(), getattr(exc, "ctx", None)
    if type(exc).__name__ == "NoArgsIsHelpError":
        return message, None
    return f"error: {message}", f"try '{context.command_path} --help'" if context else None


def discard_output() -> None:
    """Redirect stdout to the null device, so that the interpreter's last flush does not fail."""
    # A stdout without a descriptor, as in tests, is not flushed at exit.
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def replace_closed_streams() -> None:
    """Open the null device for standard streams that are closed, as by ``fib >&-``.

    Otherwise the next file to be opened would get the descriptor, and receive printed text.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _wants_traceback() -> bool:
    import logging

    if logging.getLogger("flashinfer_bench").isEnabledFor(logging.DEBUG):
        return True
    try:
        return env.show_traceback()
    except ValueError:
        return True  # FIB_TRACEBACK has a malformed value: show more rather than less


# ------------------------------------------------------------------------------- the program

_GARBAGE = 100_000  # new objects between two garbage collections; Python's default is 700

running = False
"""Whether this process is ``fib``: nothing is patched in it."""


def main() -> NoReturn:
    """Run ``fib`` on the arguments of this process and exit."""
    global running
    running = True
    # Garbage collection takes a third of the time that importing torch does, and time at exit.
    gc.set_threshold(_GARBAGE)
    atexit.register(gc.freeze)
    replace_closed_streams()
    typer.main.get_command(app)()
    raise AssertionError("the command has exited")  # pragma: no cover

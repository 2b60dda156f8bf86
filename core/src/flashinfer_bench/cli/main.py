"""Entry point of ``fib``: the table of commands, and where errors become exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn, Optional

import typer

from flashinfer_bench import env
from flashinfer_bench._version import __version__
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.failures import discard_output, replace_closed_streams, report_failure
from flashinfer_bench.cli.lazy_group import LazyCommand, LazyGroup
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COMMANDS = {
    "run": LazyCommand(
        "flashinfer_bench.cli.run:app", "Benchmark the solutions of a dataset and record traces."
    ),
    "replay": LazyCommand(
        "flashinfer_bench.cli.replay:app", "Run recorded traces again: do they still hold?"
    ),
    "compare": LazyCommand(
        "flashinfer_bench.cli.compare:app", "Say whether one solution is slower than another."
    ),
    "build": LazyCommand(
        "flashinfer_bench.cli.build:app", "Build the solutions of a dataset; evaluate none."
    ),
    "report": LazyCommand(
        "flashinfer_bench.cli.report:app", "Summarise, rank, merge or draw recorded traces."
    ),
    "export": LazyCommand(
        "flashinfer_bench.cli.transfer:export_app", "Write a dataset, or a part of it, to a file."
    ),
    "import": LazyCommand(
        "flashinfer_bench.cli.transfer:import_app", "Bring an archive or a foreign dataset in."
    ),
    "solution": LazyCommand(
        "flashinfer_bench.cli.solution:app",
        "Turn a solution into a folder of source files, and back.",
    ),
    "validate": LazyCommand(
        "flashinfer_bench.cli.validate:app", "Check that a dataset is sound; change nothing."
    ),
    "apply": LazyCommand(
        "flashinfer_bench.cli.apply:app", "Show what would be put to work here, and build it."
    ),
    "doctor": LazyCommand(
        "flashinfer_bench.cli.doctor:app", "Find what is damaged in a dataset, and repair it."
    ),
    "trace": LazyCommand(
        "flashinfer_bench.cli.trace:app", "Look at the workloads that were collected."
    ),
    "sanitize": LazyCommand(
        "flashinfer_bench.cli.sanitize:app", "Take useless workloads out of a dataset."
    ),
    "calibrate": LazyCommand(
        "flashinfer_bench.cli.calibrate:app", "Measure what a device can do at most, and store it."
    ),
    "timers": LazyCommand(
        "flashinfer_bench.cli.timers:app", "List clocks, and check what they can do here."
    ),
    "cache": LazyCommand("flashinfer_bench.cli.cache:app", "List or prune what builds have left."),
    "adapters": LazyCommand(
        "flashinfer_bench.cli.adapters:app", "Show which functions of libraries can be routed."
    ),
    "plugins": LazyCommand(
        "flashinfer_bench.cli.plugins:app", "List, show and diagnose plugins, and start new ones."
    ),
}

_EPILOG = (
    "Exit codes: 0 done, 1 findings (invalid data, conflicts), 2 usage, 3 internal error, "
    "4 something missing on this machine, 5 nothing selected, 6 ambiguous, 130 interrupted."
)


class FibGroup(LazyGroup):
    """The root command: `COMMANDS`, and what plugins add to it."""

    table = COMMANDS

    def plugin_commands(self) -> Mapping[str, Callable[[], Any]]:
        """Return the commands that plugins register, as functions that load them."""
        from flashinfer_bench.plugins import default_catalog

        return {entry.spec.name: entry.load for entry in default_catalog().commands}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of our output that went away is no error to talk about."""
        try:
            _check_environment()
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None

    def main(
        self,
        args: Optional[Sequence[str]] = None,
        prog_name: Optional[str] = None,
        complete_var: Optional[str] = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and, in `standalone_mode`, exit with a code of `ExitCode`."""
        try:
            result = super().main(
                args, prog_name, complete_var, False, windows_expand_args, **extra
            )
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as exc:  # noqa: BLE001 - the outermost boundary
            result = report_failure(exc)
        code = int(result) if isinstance(result, int) else ExitCode.OK
        if standalone_mode:
            sys.exit(code)
        return code


def _check_environment() -> None:
    """Refuse a malformed FIB_* variable as a usage error, before anything depends on it."""
    readers = (
        env.no_plugins,
        env.strict_plugins,
        env.probe_timeout_s,
        env.cpu_threads,
        env.cuda_arch_list,
        env.fsync_wanted,
        env.soft_dataset_locks,
        env.show_traceback,
    )
    for read in readers:
        try:
            read()
        except ValueError as exc:
            raise ConfigError(str(exc), hint="set it to an allowed value or unset it") from exc


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


running = False
"""Whether this process is ``fib``: nothing is patched in it."""


def main() -> NoReturn:
    """Run ``fib`` on the arguments of this process and exit."""
    global running
    running = True
    replace_closed_streams()
    typer.main.get_command(app)()
    raise AssertionError("the command exits by itself")  # pragma: no cover

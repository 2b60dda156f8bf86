"""``fib report merge``: several datasets as one."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import Local, LogLevel
from flashinfer_bench.cli.output import emit, talk
from flashinfer_bench.cli.transfer_talk import counted, tell_left_out
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

OutputFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.")
]
RenameSolutions = Annotated[
    bool,
    typer.Option(
        "--rename-solutions",
        help="Where two solutions have one name, put a digest behind the second's.",
    ),
]


def merge(
    output: OutputFolder,
    local: Local = None,
    rename_solutions: RenameSolutions = False,
    log_level: LogLevel = None,
) -> None:
    """Write several datasets as one.

    The result has today's layout and the tensor files of all of them; equal records are in it once.
    Two datasets that hold different things under one name are a conflict: nothing is written.

    Exits with 1 on a conflict, or if a record could not be read and was left out.
    """
    set_up_logging(log_level)
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.merge import merge_datasets

    if not local:
        raise ConfigError("name the datasets to merge", hint="--local DIR DIR …")
    _refuse_nested(output, local)
    sets = [TraceSet.from_path(root, on_error="collect") for root in local]
    if not any(one.definitions or one.solutions or _has_lines(one) for one in sets):
        raise SelectionError(f"there is nothing in {', '.join(map(str, local))}")
    counts = merge_datasets(sets, output, rename_solutions=rename_solutions)
    left_out = [error for one in sets for error in one.load_errors]
    tell_left_out(left_out)
    noun = "dataset" if len(sets) == 1 else "datasets"
    talk(f"merged {len(sets)} {noun}: {counted(counts)}")
    emit(str(output))
    raise typer.Exit(ExitCode.FINDINGS if left_out else ExitCode.OK)


def _has_lines(trace_set: TraceSet) -> bool:
    """Return whether there are runs or workloads; without reading all where there are runs."""
    return bool(trace_set.run_columns() or any(trace_set.workloads.values()))


def _refuse_nested(output: Path, local: list[Path]) -> None:
    for root in local:
        if output.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"the output {output} lies within the dataset {root}")

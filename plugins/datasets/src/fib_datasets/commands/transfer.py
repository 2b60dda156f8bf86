"""``fib export``, ``fib import`` and ``fib report merge``."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fib_datasets.commands import counted
from flashinfer_bench.cli.datasets import error_documents, tell_some
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import (
    AsJson,
    Definitions,
    GreedyCommand,
    Local,
    LogLevel,
    OpTypes,
    Solutions,
    option,
)
from flashinfer_bench.cli.output import emit, emit_document, set_up_logging, talk
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.errors import DataError

export_app = typer.Typer(add_completion=False, rich_markup_mode=None)
import_app = typer.Typer(add_completion=False, rich_markup_mode=None)
merge_app = typer.Typer(add_completion=False, rich_markup_mode=None)

RenameSolutions = Annotated[
    bool,
    typer.Option(
        "--rename-solutions",
        help="If two solutions have the same name, append a digest to the second.",
    ),
]


@export_app.command("export", cls=GreedyCommand)
def export(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    output: Annotated[
        Path,
        option(
            "--output",
            "-o",
            metavar="ARCHIVE",
            help="Archive to write: .tar.gz, .tgz or .tar. An existing one is replaced.",
        ),
    ],
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    with_traces: Annotated[
        bool,
        typer.Option("--with-traces/--no-traces", help="Whether to include traces of runs."),
    ] = True,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Export a dataset, or a part of it, as an archive with its tensor files.

    The same content gives the same bytes. 'fib import' and tar read the archive.

    Exits with 1 if a record could not be read and was left out.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.exporting import export_archive
    from fib_datasets.transfer.subset import Subset
    from flashinfer_bench.data import TraceSet

    trace_set = TraceSet.from_path(dataset, on_error="collect")
    subset = Subset(
        definitions=tuple(definitions or ()),
        solutions=tuple(solutions or ()),
        op_types=tuple(op_types or ()),
        traces=with_traces,
    )
    done = export_archive(trace_set, output, subset)
    errors = trace_set.load_errors
    if as_json:
        emit_document(
            archive=done.archive,
            **done.counts,
            missing_blobs=done.missing_blobs,
            lfs_pointers=done.pointers,
            left_out=error_documents(errors),
        )
    else:
        emit(str(done.archive))
    _tell_left_out(errors)
    _tell_missing(done.missing_blobs)
    if done.pointers:
        count, first = len(done.pointers), done.pointers[0]
        talk(f"warning: {count:,} tensor files are Git LFS pointers; the first is {first}")
        talk("hint: run 'git lfs pull' in the dataset, then export again")
    talk(f"exported {counted(done.counts)}: {done.archive.stat().st_size / 1024:,.0f} KiB")
    raise typer.Exit(ExitCode.FINDINGS if errors else ExitCode.OK)


@import_app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="ARCHIVE|FOLDER",
            help="An archive of 'fib export', a dataset folder of any release, or problem folders "
            "of SOL-ExecBench.",
        ),
    ],
    into: Annotated[
        Path,
        option(
            "--into",
            "-o",
            metavar="DATASET",
            help="A new folder, or a dataset to add the new records to.",
        ),
    ],
    rename_solutions: RenameSolutions = False,
    max_gib: Annotated[
        float,
        typer.Option("--max-gib", min=0.001, help="Reject archives that unpack to more GiB."),
    ] = 64.0,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Import an archive, an old dataset or one of another format into a dataset.

    Existing records are skipped. Different content under the same name is a conflict, and nothing
    is written. What cannot be imported is reported.

    Exits with 1 on a conflict, or if a record could not be imported.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.importing import import_dataset
    from fib_datasets.transfer.unpack import Limits

    limits = Limits(total_bytes=int(max_gib * (1 << 30)))
    done = import_dataset(source, into, limits=limits, rename_solutions=rename_solutions)
    if as_json:
        emit_document(
            dataset=done.dataset,
            added=done.added,
            known=done.known,
            left_out=error_documents(done.left_out),
            notes=done.notes,
            missing_blobs=done.missing_blobs,
        )
    else:
        emit(str(done.dataset))
    _tell_left_out(done.left_out)
    tell_some("note", done.notes)
    _tell_missing(done.missing_blobs)
    known = sum(done.known.values())
    talk(f"imported {counted(done.added)}" + (f"; {known:,} already existed" if known else ""))
    raise typer.Exit(ExitCode.FINDINGS if done.left_out else ExitCode.OK)


@merge_app.command("merge", cls=GreedyCommand)
def merge(
    output: Annotated[Path, option("--output", "-o", metavar="DIR", help="A new or empty folder.")],
    local: Local = None,
    rename_solutions: RenameSolutions = False,
    log_level: LogLevel = None,
) -> None:
    """Merge several datasets into one.

    The result has the current layout and all tensor files; equal records are kept once. Different
    content under the same name is a conflict, and nothing is written.

    Exits with 1 on a conflict, or if a record could not be read and was left out.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.merge import merge_datasets
    from flashinfer_bench.data import TraceSet

    if not local:
        raise ConfigError("no datasets to merge", hint="--local DIR DIR …")
    for root in local:
        if output.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"the output {output} is inside the dataset {root}")
    sets = [TraceSet.from_path(root, on_error="collect") for root in local]
    if not any(
        # Avoid reading all traces if there are runs.
        one.definitions or one.solutions or one.run_source.names() or any(one.workloads.values())
        for one in sets
    ):
        raise SelectionError(f"no records in {', '.join(map(str, local))}")
    counts = merge_datasets(sets, output, rename_solutions=rename_solutions)
    left_out = [error for one in sets for error in one.load_errors]
    _tell_left_out(left_out)
    noun = "dataset" if len(sets) == 1 else "datasets"
    talk(f"merged {len(sets)} {noun}: {counted(counts)}")
    emit(str(output))
    raise typer.Exit(ExitCode.FINDINGS if left_out else ExitCode.OK)


def _tell_left_out(errors: Sequence[DataError]) -> None:
    tell_some("left out", [f"{error.where}: {error.message}" for error in errors])
    if errors:
        talk("hint: everything else was kept; --json and 'fib validate' list all errors")


def _tell_missing(paths: Sequence[str]) -> None:
    if paths:
        talk(f"warning: {len(paths):,} tensor files are missing; the first is {paths[0]}")

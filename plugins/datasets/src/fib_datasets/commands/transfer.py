"""``fib export`` and ``fib import``: datasets as single files, and data of older layouts."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashinfer_bench.cli.datasets import counted, error_documents, tell_left_out, tell_notes
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import (
    AsJson,
    Definitions,
    GreedyCommand,
    LogLevel,
    OpTypes,
    RenameSolutions,
    Solutions,
)
from flashinfer_bench.cli.output import emit, emit_json, set_up_logging, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_datasets.transfer.importing import Imported

SCHEMA_VERSION = 1

export_app = typer.Typer(add_completion=False, rich_markup_mode=None)
import_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@export_app.command("export", cls=GreedyCommand)
def export(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="ARCHIVE",
            help="The file to write: .tar.gz, .tgz or .tar. One that exists is replaced.",
        ),
    ],
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    with_traces: Annotated[
        bool,
        typer.Option("--with-traces/--no-traces", help="Whether traces of runs are taken along."),
    ] = True,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Write a dataset, or a part of it, as one archive with the tensor files that it names.

    The same content gives the same bytes. 'fib import' reads it, and so does tar.

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
        document = {"archive": done.archive, **done.counts, "missing_blobs": done.missing_blobs}
        pointers = {"lfs_pointers": done.pointers, "left_out": error_documents(errors)}
        emit_json({"schema_version": SCHEMA_VERSION, **document, **pointers})
    else:
        emit(str(done.archive))
    tell_left_out(errors)
    tell_missing(done.missing_blobs, done.pointers)
    talk(f"exported {counted(done.counts)}: {done.archive.stat().st_size / 1024:,.0f} KiB")
    raise typer.Exit(ExitCode.FINDINGS if errors else ExitCode.OK)


@import_app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="ARCHIVE|FOLDER",
            help="What to import: an archive of 'fib export', a dataset folder of any release, or "
            "problem folders of SOL-ExecBench.",
        ),
    ],
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            "-o",
            metavar="DATASET",
            help="A new folder, or a dataset that gets what it does not have yet.",
        ),
    ],
    rename_solutions: RenameSolutions = False,
    max_gib: Annotated[
        float,
        typer.Option("--max-gib", min=0.001, help="Refuse an archive that unpacks to more GiB."),
    ] = 64.0,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Bring an archive, an old dataset or a foreign one into a dataset of today's layout.

    Records that are there already are skipped; other content under the same name is a conflict,
    and nothing is written. What cannot be carried over is told.

    Exits with 1 on a conflict, or if a record could not be carried over.
    """
    set_up_logging(log_level)
    from fib_datasets.transfer.importing import import_dataset
    from fib_datasets.transfer.unpack import Limits

    limits = Limits(total_bytes=int(max_gib * (1 << 30)))
    done = import_dataset(source, into, limits=limits, rename_solutions=rename_solutions)
    if as_json:
        emit_json(_document(done))
    else:
        emit(str(done.dataset))
    tell_left_out(done.left_out)
    tell_notes(done.notes)
    tell_missing(done.missing_blobs)
    known = sum(done.known.values())
    talk(f"imported {counted(done.added)}" + (f"; {known:,} were there already" if known else ""))
    raise typer.Exit(ExitCode.FINDINGS if done.left_out else ExitCode.OK)


def tell_missing(paths: Sequence[str], pointers: Sequence[str] = ()) -> None:
    """Tell which tensor files are not there, or only in name."""
    if paths:
        talk(f"warning: {len(paths):,} tensor files are missing; the first is {paths[0]}")
    if pointers:
        talk(
            f"warning: {len(pointers):,} tensor files are Git LFS pointers; the first is "
            f"{pointers[0]}"
        )
        talk("hint: run 'git lfs pull' in the dataset, then do this again")


def _document(done: Imported) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": done.dataset,
        "added": done.added,
        "known": done.known,
        "left_out": error_documents(done.left_out),
        "notes": done.notes,
        "missing_blobs": done.missing_blobs,
    }

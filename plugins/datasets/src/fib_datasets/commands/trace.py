"""``fib trace``: show the workloads collected by tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, LogLevel, OneLocal
from flashinfer_bench.cli.output import emit_document, set_up_logging, table, talk
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from fib_datasets.workload_summary import DefinitionSummary

COLUMNS = ("definition", "workloads", "traced", "distinct_axes", "blobs", "blob_bytes", "axes")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def trace() -> None:
    """Show the collected workloads."""


@app.command("summary", cls=GreedyCommand)
def summary(local: OneLocal = None, as_json: AsJson = False, log_level: LogLevel = None) -> None:
    """Show number, sizes and bytes of the workloads of each definition.

    "traced" counts workloads recorded by tracing, whose uuid is a hash of the content.
    Exits with 1 if a line could not be read, and with 5 if there are no workloads.
    """
    set_up_logging(log_level, default="ERROR")
    (root,) = dataset_roots([local] if local else None)
    from fib_datasets.workload_summary import summarize
    from flashinfer_bench.data import layout

    layout.require_dataset(root)
    found, unread = summarize(root)
    if not found and not unread:
        hint = "run a program with FIB_ENABLE_TRACING=1 to collect some"
        raise SelectionError(f"the dataset {root} has no workloads", hint=hint)
    if as_json:
        emit_document(root=root, definitions=found, unread=[one.where for one in unread])
    else:
        table(f"Workloads of {root}", COLUMNS, map(_row, found))
        talk(
            f"{root}: {sum(one.workloads for one in found):,} workloads "
            f"({sum(one.traced for one in found):,} traced) of {len(found):,} definitions, "
            f"{sum(one.blob_bytes for one in found):,} bytes of tensors"
        )
        missing = sum(one.missing_blobs for one in found)
        if missing:
            talk(f"{missing:,} tensor files are missing; 'fib doctor' lists them")
        if unread:
            talk(f"{len(unread):,} lines cannot be read; 'fib doctor' lists them")
    raise typer.Exit(ExitCode.FINDINGS if unread else ExitCode.OK)


def _row(one: DefinitionSummary) -> tuple[Any, ...]:
    axes = ", ".join(
        f"{name} {least}" if least == largest else f"{name} {least}-{largest}"
        for name, (least, largest) in one.axes.items()
    )
    counts = one.workloads, one.traced, one.distinct_axes, one.blobs, one.blob_bytes
    return one.definition, *counts, axes

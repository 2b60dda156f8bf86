"""``fib sanitize``: remove useless workloads from a dataset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from fib_datasets.commands import counted
from flashinfer_bench.cli.datasets import dataset_roots, tell_some
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import AsJson, GreedyCommand, LogLevel, OneLocal
from flashinfer_bench.cli.output import emit_document, set_up_logging, table, talk

if TYPE_CHECKING:
    from fib_datasets.sanitize import Cleaned, Finding

COLUMNS = ("reason", "definition", "workload", "place", "message")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("sanitize", cls=GreedyCommand)
def sanitize(
    local: OneLocal = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    max_bytes: Annotated[
        Optional[int],
        typer.Option(min=1, metavar="N", help="Largest total size of inputs and outputs in bytes."),
    ] = None,
    max_elements: Annotated[
        Optional[int],
        typer.Option(min=1, metavar="N", help="Largest number of elements of an input or output."),
    ] = None,
    with_traces: Annotated[
        bool,
        typer.Option(
            "--with-traces", help="Also remove workloads that have traces, with those traces."
        ),
    ] = False,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Remove duplicate, degenerate and outsized workloads and unused tensors from a dataset.

    Degenerate workloads have axes of size 0, scalars that are not finite, offsets that do not start
    at 0 or that decrease, batches of empty sequences, or violated constraints. Nothing is deleted:
    everything is moved to the folder sanitize_backup_<time> of the dataset. Other processes may
    append in the meantime.

    Exits with 1 if --dry-run finds something to remove, or if something could not be read.
    """
    set_up_logging(log_level, default="ERROR")
    (root,) = dataset_roots([local] if local else None)
    from fib_datasets.sanitize import Limits
    from fib_datasets.sanitize import sanitize as carry_out

    limits = Limits(max_bytes, max_elements)
    done = carry_out(root, limits, with_traces=with_traces, dry_run=dry_run)
    if as_json:
        emit_document(
            root=done.root,
            dry_run=dry_run,
            workloads=done.workloads,
            dropped=done.dropped,
            kept=done.kept,
            unread=[one.where for one in done.unread],
            errors=[f"{one.where}: {one.message}" for one in done.errors],
            backup=done.backup,
        )
    else:
        _print(done, dry_run=dry_run)
    unsound = bool(done.unread or done.errors or (dry_run and done.dropped))
    raise typer.Exit(ExitCode.FINDINGS if unsound else ExitCode.OK)


def _print(done: Cleaned, *, dry_run: bool) -> None:
    if done.dropped:
        title = "Would be moved to a backup" if dry_run else "Moved to the backup"
        table(title, COLUMNS, map(_row, done.dropped))
    kept = [f"{'  '.join(_row(one))}; {one.traces:,} traces refer to it" for one in done.kept]
    tell_some("kept", kept)
    if kept:
        talk("hint: --with-traces removes them with these traces")
    tell_some("error", [f"{error.where}: {error.message}" for error in done.errors])
    tell_some("error", [f"{one.where}: {one.message}" for one in done.unread])
    if done.unread:
        talk("hint: tensor files were skipped, since these lines may name any; see 'fib doctor'")
    what = "would move" if dry_run else "moved"
    target = "" if done.backup is None else f" to {done.backup}"
    kinds = Counter(one.kind.value for one in done.dropped)
    talk(f"{done.root}: {what} {counted(kinds)} of {done.workloads:,} workloads{target}")


def _row(one: Finding) -> tuple[str, ...]:
    return one.kind.value, one.definition, one.uuid, one.where, one.message

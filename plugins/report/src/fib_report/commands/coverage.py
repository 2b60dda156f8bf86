"""``fib report coverage``: what is missing in a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import (
    AsJson,
    Definitions,
    GreedyCommand,
    Hardware,
    Hub,
    Local,
    LogLevel,
    OpTypes,
)
from flashinfer_bench.cli.output import set_up_logging, talk
from flashinfer_bench.cli.report import (
    Baseline,
    Format,
    FormatOption,
    chosen_format,
    make_selection,
    write_tables,
)
from flashinfer_bench.errors import SelectionError

GapsOnly = Annotated[bool, typer.Option("--gaps", help="Only definitions that lack something.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything is lacking.")]


def coverage(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    op_types: OpTypes = None,
    hardware: Hardware = None,
    baseline_author: Baseline = "baseline",
    gaps: GapsOnly = False,
    strict: Strict = False,
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Show which definitions lack workloads, solutions or evaluations.

    A device that was used for any of them is expected for all. One column for each device counts
    the pairs of a solution and a workload that were evaluated there.
    """
    set_up_logging(log_level)
    from fib_report.coverage import find_gaps

    opened = open_datasets(local, hub)
    selection = make_selection(definitions=definitions, op_types=op_types, hardware=hardware)
    found = find_gaps(opened.trace_set, selection, baseline_author)
    if not found:
        raise SelectionError("the filters leave no definition")
    lacking = [one for one in found if not one.complete]
    shown = lacking if gaps else found
    devices = list(found[0].evaluated)
    columns = ["definition", "op_type", "solutions", "workloads", "pairs", *devices, "lacking"]
    rows = [
        (
            *(one.definition, one.op_type, one.solutions, one.workloads, one.pairs),
            *(one.evaluated[device] for device in devices),
            "; ".join(one.missing),
        )
        for one in shown
    ]
    write_tables(
        chosen_format(output_format, as_json),
        [("Coverage", columns, rows)],
        lambda: {"devices": devices, "definitions": shown},
    )
    talk(f"{len(lacking)} of {len(found)} definitions lack something")
    raise typer.Exit(ExitCode.FINDINGS if strict and lacking else opened.exit_code())


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("coverage", cls=GreedyCommand)(coverage)

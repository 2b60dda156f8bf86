"""``fib report``: look at recorded traces; nothing is run."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashinfer_bench.cli.datasets import OpenedDataset, open_datasets
from flashinfer_bench.cli.greedy import GreedyCommand
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import (
    AsJson,
    Authors,
    Definitions,
    Hardware,
    Hub,
    Local,
    LogLevel,
    OpTypes,
    Solutions,
)
from flashinfer_bench.cli.output import emit, talk
from flashinfer_bench.cli.report_best import best
from flashinfer_bench.cli.report_common import (
    Baseline,
    Format,
    FormatOption,
    Table,
    chosen_format,
    make_selection,
    open_results,
    write_tables,
)
from flashinfer_bench.cli.report_coverage import coverage
from flashinfer_bench.cli.report_measures import tell_mixtures
from flashinfer_bench.cli.report_merge import merge
from flashinfer_bench.cli.report_regressions import regressions
from flashinfer_bench.cli.report_scores import scores
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.report import DatasetSummary

app = typer.Typer(
    name="report",
    help="Summarise, rank, merge or draw recorded traces.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

OutputFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]
Title = Annotated[str, typer.Option("--title", help="Heading of the page.")]


@app.command("summary", cls=GreedyCommand)
def summary(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    op_types: OpTypes = None,
    hardware: Hardware = None,
    baseline_author: Baseline = "baseline",
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Count what there is, and rank the authors.

    One row for each definition, then one for each author on each device (with each timer and cache
    mode), then how the latencies were taken.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report import summarize
    from flashinfer_bench.report.conditions import mixtures

    opened = open_datasets(local, hub)
    selection = make_selection(definitions=definitions, op_types=op_types, hardware=hardware)
    found = summarize(opened.trace_set, selection, baseline_author)
    if not found.definitions:
        raise SelectionError("the filters leave no definition")
    write_tables(
        chosen_format(output_format, as_json),
        _summary_tables(found),
        lambda: _summary_document(found, opened),
    )
    _tell_totals(found)
    tell_mixtures(mixtures((one.hardware, (one.timer, one.cache)) for one in found.timings))
    raise typer.Exit(opened.exit_code())


app.command("best", cls=GreedyCommand)(best)
app.command("scores", cls=GreedyCommand)(scores)
app.command("coverage", cls=GreedyCommand)(coverage)
app.command("regressions", cls=GreedyCommand)(regressions)
app.command("merge", cls=GreedyCommand)(merge)


@app.command("visualize", cls=GreedyCommand)
def visualize(
    local: Local = None,
    hub: Hub = None,
    output: OutputFile = Path("report.html"),
    title: Title = "Benchmark results",
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    authors: Authors = None,
    hardware: Hardware = None,
    log_level: LogLevel = None,
) -> None:
    """Write a page with tables and plots.

    It is one HTML file for any browser, which asks for nothing else and works offline.
    """
    set_up_logging(log_level)
    from flashinfer_bench.data.storage import replace_file
    from flashinfer_bench.report import PageInfo, find_gaps, render_page

    opened, results = open_results(
        local,
        hub,
        definitions=definitions,
        solutions=solutions,
        op_types=op_types,
        authors=authors,
        hardware=hardware,
    )
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    scope = make_selection(definitions=definitions, op_types=op_types, hardware=hardware)
    # What solutions or authors alone lack is no gap of the dataset.
    gaps = [] if solutions or authors else find_gaps(opened.trace_set, scope)
    page = render_page(results, PageInfo(title, opened.name, now), gaps).encode()
    replace_file(output, page)
    talk(f"{len(results)} evaluations, {len(page) / 1024:,.0f} KiB")
    emit(str(output))
    raise typer.Exit(opened.exit_code())


def _summary_document(found: DatasetSummary, opened: OpenedDataset) -> dict[str, Any]:
    return {
        "dataset": list(opened.roots),
        "totals": found.totals(),
        "statuses": found.statuses,
        "definitions": found.definitions,
        "baseline_author": found.baseline_author,
        "rankings": found.rankings,
        "timings": found.timings,
        "unranked": found.unranked,
        "unreadable": [
            {"path": e.path, "line": e.line, "field": e.field, "message": e.message}
            for e in opened.errors
        ],
    }


_COUNTS = ("definition", "op_type", "solutions", "workloads", "traces", "passed", "failed")


def _summary_tables(found: DatasetSummary) -> list[Table]:
    rows = [tuple(getattr(one, name) for name in _COUNTS) for one in found.definitions]
    tables: list[Table] = [("Definitions", _COUNTS, rows)]
    if found.rankings:
        columns = ("hardware", "timer", "cache", "author", "speedup", "definitions", "workloads")
        ranks = [tuple(getattr(one, name) for name in columns) for one in found.rankings]
        tables.append((f"Authors, compared with {found.baseline_author}", columns, ranks))
    if found.timings:
        clocks = [tuple(getattr(one, name) for name in _TIMINGS) for one in found.timings]
        tables.append(("How latencies were taken", _TIMINGS, clocks))
    return tables


_TIMINGS = (
    "hardware",
    "timer",
    "cache",
    "stop_rule",
    "reference",
    "runs",
    "samples",
    "with_samples",
    "with_interval",
    "with_dropped",
)


def _tell_totals(found: DatasetSummary) -> None:
    totals = ", ".join(f"{count:,} {noun}" for noun, count in found.totals().items())
    talk(f"total: {totals}")
    if found.statuses:
        talk("statuses: " + ", ".join(f"{n:,} {name}" for name, n in found.statuses.items()))
    if found.unranked:
        _tell_unranked(found)


def _tell_unranked(found: DatasetSummary) -> None:
    reasons = list(found.unranked.values())
    talk(f"not in the ranking: {len(reasons)} definitions; the first because {reasons[0]}")
    talk("hint: name another author with --baseline-author; --json lists all reasons")

"""``fib report``: look at recorded traces; nothing is run."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashinfer_bench.cli.datasets import OpenedDataset, dataset_roots, open_datasets
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
from flashinfer_bench.cli.output import emit, emit_json, table, talk
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from flashinfer_bench.report import Best, DatasetSummary, Result, Selection

SCHEMA_VERSION = 1

app = typer.Typer(
    name="report",
    help="Summarise, rank, merge or draw recorded traces.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Baseline = Annotated[
    str,
    typer.Option(
        "--baseline-author", metavar="NAME", help="Author whose solutions others are compared with."
    ),
]
OutputFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.")
]
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
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Count what there is, and rank the authors.

    One row for each definition, then one for each author on each device.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report import summarize

    opened = open_datasets(local, hub)
    selection = _selection(definitions=definitions, op_types=op_types, hardware=hardware)
    found = summarize(opened.trace_set, selection, baseline_author)
    if not found.definitions:
        raise SelectionError("the filters leave no definition")
    if as_json:
        emit_json(_summary_document(found, opened))
    else:
        _print_summary(found)
    raise typer.Exit(opened.exit_code())


@app.command("best", cls=GreedyCommand)
def best(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    authors: Authors = None,
    hardware: Hardware = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Show the fastest correct solution of each definition.

    One for each device. It has to have passed on every workload on which it was last evaluated;
    among those with the most workloads the lowest geometric mean of the latencies wins. Its lead
    is the runner-up's geometric mean over its own.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report import best_solutions, score_solutions

    opened, results = _open_results(
        local,
        hub,
        definitions=definitions,
        solutions=solutions,
        op_types=op_types,
        authors=authors,
        hardware=hardware,
    )
    found = best_solutions(score_solutions(results))
    if as_json:
        emit_json({"schema_version": SCHEMA_VERSION, "best": [_best_document(b) for b in found]})
    else:
        table("Best solutions", _BEST_COLUMNS, map(_best_row, found))
    if not found:
        talk("no solution passed on all its workloads")
    raise typer.Exit(opened.exit_code())


@app.command("merge", cls=GreedyCommand)
def merge(output: OutputFolder, local: Local = None, log_level: LogLevel = None) -> None:
    """Write several datasets as one.

    The result has the canonical layout and the tensor files of all of them. Two datasets that hold
    different things under one name are a conflict: nothing is written.
    """
    set_up_logging(log_level)
    from flashinfer_bench.data import export_trace_set

    if not local:
        raise ConfigError("name the datasets to merge", hint="--local DIR DIR …")
    _refuse_nested(output, local)
    opened = open_datasets(local)
    written = export_trace_set(opened.trace_set, output, blob_roots=dataset_roots(local))
    talk(f"merged {len(opened.roots)} datasets: {_sizes(opened)}")
    emit(str(written))
    raise typer.Exit(opened.exit_code())


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
    from flashinfer_bench.report import PageInfo, render_page

    opened, results = _open_results(
        local,
        hub,
        definitions=definitions,
        solutions=solutions,
        op_types=op_types,
        authors=authors,
        hardware=hardware,
    )
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    page = render_page(results, PageInfo(title, opened.name, now)).encode()
    replace_file(output, page)
    talk(f"{len(results)} evaluations, {len(page) / 1024:,.0f} KiB")
    emit(str(output))
    raise typer.Exit(opened.exit_code())


def _selection(**names: list[str] | None) -> Selection:
    from flashinfer_bench.report import Selection

    return Selection(**{field: tuple(values or ()) for field, values in names.items()})


def _open_results(
    local: Local, hub: str | None, **names: list[str] | None
) -> tuple[OpenedDataset, list[Result]]:
    from flashinfer_bench.report import collect_results, latest_results

    opened = open_datasets(local, hub)
    results = latest_results(collect_results(opened.trace_set, _selection(**names)))
    if not results:
        raise SelectionError(
            f"there is no trace of a run in {opened.name} that fits the filters",
            hint="record some with 'fib run', or widen the filters",
        )
    return opened, results


def _refuse_nested(output: Path, local: list[Path]) -> None:
    for root in local:
        if output.resolve().is_relative_to(root.resolve()):
            raise ConfigError(f"the output {output} lies within the dataset {root}")


def _sizes(opened: OpenedDataset) -> str:
    one = opened.trace_set
    counts = {
        "definitions": len(one.definitions),
        "solutions": sum(map(len, one.solutions.values())),
        "workloads": sum(map(len, one.workloads.values())),
        "traces": sum(map(len, one.traces.values())),
    }
    return ", ".join(f"{count:,} {noun}" for noun, count in counts.items())


def _summary_document(found: DatasetSummary, opened: OpenedDataset) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": list(opened.roots),
        "totals": found.totals(),
        "statuses": found.statuses,
        "definitions": found.definitions,
        "baseline_author": found.baseline_author,
        "rankings": found.rankings,
        "unranked": found.unranked,
        "unreadable": [
            {"path": e.path, "line": e.line, "field": e.field, "message": e.message}
            for e in opened.errors
        ],
    }


_COUNTS = ("definition", "op_type", "solutions", "workloads", "traces", "passed", "failed")


def _print_summary(found: DatasetSummary) -> None:
    rows = [tuple(getattr(one, name) for name in _COUNTS) for one in found.definitions]
    table("Definitions", _COUNTS, rows)
    totals = ", ".join(f"{count:,} {noun}" for noun, count in found.totals().items())
    talk(f"total: {totals}")
    if found.statuses:
        talk("statuses: " + ", ".join(f"{n:,} {name}" for name, n in found.statuses.items()))
    if found.rankings:
        emit("")
        columns = ("hardware", "author", "speedup", "definitions", "workloads")
        ranks = [tuple(getattr(one, name) for name in columns) for one in found.rankings]
        table(f"Authors, compared with {found.baseline_author}", columns, ranks)
    if found.unranked:
        _tell_unranked(found)


def _tell_unranked(found: DatasetSummary) -> None:
    reasons = list(found.unranked.values())
    talk(f"not in the ranking: {len(reasons)} definitions; the first because {reasons[0]}")
    talk("hint: name another author with --baseline-author; --json lists all reasons")


_BEST_COLUMNS = (
    "definition",
    "op_type",
    "hardware",
    "solution",
    "author",
    "geomean_ms",
    "speedup",
    "workloads",
    "solutions",
    "lead",
)


def _best_row(best: Best) -> tuple[Any, ...]:
    score = best.score
    return (
        score.definition,
        score.op_type,
        score.hardware,
        score.solution,
        score.author,
        score.mean_latency_ms,
        score.speedup,
        score.passed,
        best.tried,
        best.lead,
    )


def _best_document(best: Best) -> dict[str, Any]:
    document = dict(zip(_BEST_COLUMNS, _best_row(best), strict=True))
    runner_up = best.runner_up.solution if best.runner_up is not None else None
    return {**document, "language": best.score.language, "runner_up": runner_up}

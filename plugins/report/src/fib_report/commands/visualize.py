"""``fib report visualize``: the page."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from flashinfer_bench.cli.options import (
    Authors,
    Definitions,
    GreedyCommand,
    Hardware,
    Hub,
    Local,
    LogLevel,
    OpTypes,
    Solutions,
)
from flashinfer_bench.cli.output import emit, set_up_logging, talk
from flashinfer_bench.cli.report import make_selection, open_results

OutputFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]
Title = Annotated[str, typer.Option("--title", help="Heading of the page.")]


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
    from fib_report.coverage import find_gaps
    from fib_report.page import PageInfo, render_page
    from flashinfer_bench.data.storage import replace_file

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


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("visualize", cls=GreedyCommand)(visualize)

"""``fib report scores``: how authors and solutions rate."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import (
    AsJson,
    Definitions,
    Hardware,
    Hub,
    Local,
    LogLevel,
    OpTypes,
)
from flashinfer_bench.cli.output import talk
from flashinfer_bench.cli.report_common import (
    Baseline,
    Format,
    FormatOption,
    chosen_format,
    make_selection,
    write_tables,
)
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.report.scoreboard import Scoreboard, Standing

Thresholds = Annotated[
    Optional[list[float]],
    typer.Option(
        "--p", metavar="P...", show_default=False, help="Speed-ups for fast_p and win rate."
    ),
]
BySolution = Annotated[bool, typer.Option("--by-solution", help="Rate solutions, not authors.")]
Reference = Annotated[
    bool,
    typer.Option("--reference", help="Compare with the definition's reference, not an author."),
]


def scores(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    op_types: OpTypes = None,
    hardware: Hardware = None,
    baseline_author: Baseline = "baseline",
    reference: Reference = False,
    thresholds: Thresholds = None,
    by_solution: BySolution = False,
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Rate authors or solutions: scores, fast_p, win rates and means.

    By the latest result of each solution, workload and device; devices are rated apart. A task is
    one workload of one definition. fast_p is the share of all tasks solved and more than p times as
    fast; win_p the share of the solved tasks in which it is at least p times as fast; geomean and
    mean are over the solved tasks; score is the mean speed-up, 0 for solutions that ever failed.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report.ratings import THRESHOLDS
    from flashinfer_bench.report.scoreboard import make_scoreboard

    at = _checked(thresholds or THRESHOLDS)
    opened = open_datasets(local, hub)
    selection = make_selection(definitions=definitions, op_types=op_types, hardware=hardware)
    baseline = None if reference else baseline_author
    found = make_scoreboard(opened.trace_set, selection, baseline, at, by_solution)
    if not found.standings:
        raise SelectionError(
            f"there is no result in {opened.name} to rate",
            hint="record some with 'fib run', or widen the filters",
        )
    columns = _columns("solution" if by_solution else "author", at)
    rows = [_row(standing, at) for standing in found.standings]
    against = found.baseline_author or "the reference"
    write_tables(
        chosen_format(output_format, as_json),
        [(f"Compared with {against}", columns, rows)],
        lambda: _document(found, columns, rows),
    )
    talk(f"speed-ups are over {against}")
    raise typer.Exit(opened.exit_code())


def _checked(thresholds: Sequence[float]) -> tuple[float, ...]:
    for p in thresholds:
        if not 0.0 <= p < float("inf"):
            raise ConfigError(f"{p:g} is no speed-up", hint="--p 1 1.5 2")
    return tuple(dict.fromkeys(thresholds))


def _columns(whose: str, thresholds: Sequence[float]) -> list[str]:
    counts = ["tasks", "tried", "solved", "definitions", "score", "geomean", "mean"]
    fast = [f"fast_{p:g}" for p in thresholds]
    return ["hardware", whose, *counts, *fast, *(f"win_{p:g}" for p in thresholds), "fastest"]


def _row(standing: Standing, thresholds: Sequence[float]) -> list[Any]:
    one = standing.rating
    counts = [one.tasks, one.tried, one.solved, one.definitions]
    means = [standing.score, one.speedup, one.mean_speedup]
    shares = [*(one.fast[p] for p in thresholds), *(one.wins[p] for p in thresholds)]
    return [standing.hardware, one.name, *counts, *means, *shares, one.first]


def _document(
    found: Scoreboard, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    listed = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"baseline_author": found.baseline_author, "scores": listed}

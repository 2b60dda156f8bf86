"""``fib report scores``: how authors and solutions rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.datasets import open_datasets
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
from flashinfer_bench.cli.output import Column, document_of, set_up_logging, talk
from flashinfer_bench.cli.report import (
    Baseline,
    Format,
    FormatOption,
    NamedBaselineOption,
    chosen_format,
    clock_label,
    is_tied,
    make_selection,
    rank_number,
    tell_mixtures,
    write_tables,
)
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fib_report.ratings import Scoreboard, Standing

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
    baseline: NamedBaselineOption = None,
    reference: Reference = False,
    thresholds: Thresholds = None,
    by_solution: BySolution = False,
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Rate authors or solutions: scores, fast_p, win rates and means.

    By the latest result of each solution, workload and device; devices, timers and cache modes are
    rated apart. A task is one workload of one definition. fast_p is the share of all tasks solved
    and more than p times as fast; win_p the share of the solved tasks in which it is at least p
    times as fast; geomean and mean are over the solved tasks; score is the mean speed-up, 0 for
    solutions that ever failed. Those with the same fast_p whose 95 % intervals of the geomean
    overlap share a rank (=2).
    """
    set_up_logging(log_level)
    from fib_report.ratings import THRESHOLDS, make_scoreboard

    at = _checked(thresholds or THRESHOLDS)
    opened = open_datasets(local, hub)
    selection = make_selection(definitions=definitions, op_types=op_types, hardware=hardware)
    against = None if reference else baseline or baseline_author
    if reference and baseline:
        raise ConfigError("--baseline and --reference are two different things to compare with")
    found = make_scoreboard(opened.trace_set, selection, against, at, by_solution)
    if baseline and found.baseline_author is None:
        raise _unknown_baseline(found, opened.name, baseline)
    if not found.standings:
        raise SelectionError(
            f"there is no result in {opened.name} to rate",
            hint="record some with 'fib run', or widen the filters",
        )
    columns = _columns("solution" if by_solution else "author", at)
    over = found.baseline_author or "the reference"
    write_tables(
        chosen_format(output_format, as_json),
        [(f"Compared with {over}", columns, found.standings)],
        lambda: _document(found, columns),
    )
    tell_mixtures(found.mixtures)
    unpaired = ", unpaired: from separate runs" if found.baseline_author else ""
    talk(f"speed-ups are over {over}{unpaired}")
    raise typer.Exit(opened.exit_code())


def _checked(thresholds: Sequence[float]) -> tuple[float, ...]:
    for p in thresholds:
        if not 0.0 <= p < float("inf"):
            raise ConfigError(f"{p:g} is no speed-up", hint="--p 1 1.5 2")
    return tuple(dict.fromkeys(thresholds))


def _unknown_baseline(found: Scoreboard, dataset: str, name: str) -> SelectionError:
    known = sorted({one.rating.name for one in found.standings})
    return SelectionError(
        f"no result in {dataset} passed that is of a solution or author {name!r}",
        hint=f"there are: {', '.join(known[:8])}",
    )


def _columns(whose: str, thresholds: Sequence[float]) -> list[Column]:
    fast = [Column(f"fast_{p:g}", partial(_fast, p)) for p in thresholds]
    wins = [Column(f"win_{p:g}", partial(_wins, p)) for p in thresholds]
    return [
        Column("hardware", lambda s: s.hardware),
        Column("timer", lambda s: s.timer, people=False),
        Column("cache", lambda s: s.cache, people=False),
        Column("timed", clock_label, programs=False),
        Column("rank", lambda s: s.rating.rank, programs=False),
        Column("rank", lambda s: rank_number(s.rating.rank), people=False),
        Column("tied", lambda s: is_tied(s.rating.rank), people=False),
        Column(whose, lambda s: s.rating.name),
        Column("tasks", lambda s: s.rating.tasks),
        Column("tried", lambda s: s.rating.tried),
        Column("solved", lambda s: s.rating.solved),
        Column("definitions", lambda s: s.rating.definitions),
        Column("score", lambda s: s.score),
        Column("geomean", lambda s: s.rating.measured, measured=True),
        Column("mean", lambda s: s.rating.mean_speedup),
        *fast,
        *wins,
        Column("fastest", lambda s: s.rating.first),
        Column("samples", lambda s: s.rating.samples),
        Column("without_interval", lambda s: s.rating.without_interval, people=False),
        Column("dropped", lambda s: s.rating.dropped, people=False),
        Column("reference_before", lambda s: s.rating.reference_before, people=False),
        Column("notes", _notes, programs=False),
    ]


def _fast(p: float, standing: Standing) -> float:
    return standing.rating.fast[p]


def _wins(p: float, standing: Standing) -> float:
    return standing.rating.wins[p]


def _notes(standing: Standing) -> str:
    one = standing.rating
    found = []
    if one.without_interval:
        found.append(f"no interval in {one.without_interval} of {one.compared} tasks")
    if one.dropped:
        found.append(f"{one.dropped} of {one.samples} samples dropped")
    if one.reference_before:
        found.append(f"reference timed before, not beside, in {one.reference_before} tasks")
    return "; ".join(found)


def _document(found: Scoreboard, columns: Sequence[Column]) -> dict[str, Any]:
    listed = [document_of(columns, one) for one in found.standings]
    return {"baseline_author": found.baseline_author, "scores": listed}


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("scores", cls=GreedyCommand)(scores)

"""Subcommands of ``fib report``, and ``fib validate-render``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from datetime import datetime, timezone
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_report import tables
from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import error_documents, show_findings
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import GreedyCommand
from flashinfer_bench.cli.output import Column, document_of, emit, talk, write_output
from flashinfer_bench.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fib_report.ratings import Standing

# -------------------------------------------------------------------------------------- summary

Baseline = Annotated[
    str,
    typer.Option(
        "--baseline-author", metavar="NAME", help="Author whose solutions others are compared with."
    ),
]


@tables.takes(report=tables.report_of, chosen=tables.format_of)
def summary(
    report: tables.Report, chosen: tables.Format, baseline_author: Baseline = "baseline"
) -> None:
    """Count definitions, solutions and traces, and rank the authors.

    Three tables: definitions; authors on each device, with each timer and cache mode; and how the
    latencies were measured.
    """
    from fib_report.results import mixtures
    from fib_report.summary import summarize

    opened = report.opened
    found = summarize(opened.trace_set, report.selection, baseline_author)
    if not found.definitions:
        raise SelectionError("no definition matches the filters")
    optional: dict[str, Sequence[Any]] = {
        f"Authors, compared with {baseline_author}": found.rankings,
        "How latencies were measured": found.timings,
    }
    tables.write_tables(
        chosen,
        [
            _dataclass_table("Definitions", found.definitions),
            *(_dataclass_table(title, rows) for title, rows in optional.items() if rows),
        ],
        lambda: {
            "dataset": list(opened.roots),
            "totals": found.totals(),
            "statuses": found.statuses,
            "definitions": found.definitions,
            "baseline_author": baseline_author,
            "rankings": found.rankings,
            "timings": found.timings,
            "unranked": found.unranked,
            "unreadable": error_documents(opened.errors),
        },
    )
    talk("total: " + ", ".join(f"{count:,} {noun}" for noun, count in found.totals().items()))
    if found.statuses:
        talk("statuses: " + ", ".join(f"{n:,} {name}" for name, n in found.statuses.items()))
    if found.unranked:
        reasons = list(found.unranked.values())
        talk(f"definitions not in the ranking: {len(reasons)}; reason for the first: {reasons[0]}")
        talk("hint: name another author with --baseline-author; --json lists all reasons")
    tables.tell_mixtures(mixtures((one.hardware, (one.timer, one.cache)) for one in found.timings))
    raise typer.Exit(opened.exit_code())


def _dataclass_table(title: str, rows: Sequence[Any]) -> tables.Table:
    columns = [field.name for field in dataclasses.fields(rows[0])]
    return title, columns, [dataclasses.astuple(row) for row in rows]


# ------------------------------------------------------------------------------------- coverage

GapsOnly = Annotated[bool, typer.Option("--gaps", help="Show only definitions with gaps.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are gaps.")]


@tables.takes(report=tables.report_of, chosen=tables.format_of)
def coverage(
    report: tables.Report,
    chosen: tables.Format,
    baseline_author: Baseline = "baseline",
    gaps: GapsOnly = False,
    strict: Strict = False,
) -> None:
    """Show which definitions lack workloads, solutions or evaluations.

    A device that was used for one definition is expected for all. The column of a device counts the
    pairs of solution and workload that were evaluated on it.
    """
    from fib_report.coverage import find_gaps

    opened = report.opened
    found = find_gaps(opened.trace_set, report.selection, baseline_author)
    if not found:
        raise SelectionError("no definition matches the filters")
    lacking = [one for one in found if not one.complete]
    shown = lacking if gaps else found
    devices = list(found[0].evaluated)
    columns = ("definition", "op_type", "solutions", "workloads", "pairs", *devices, "lacking")
    rows = [
        (*attrgetter(*columns[:5])(one), *map(one.evaluated.get, devices), "; ".join(one.missing))
        for one in shown
    ]
    tables.write_tables(
        chosen,
        [("Coverage", columns, rows)],
        lambda: {"devices": devices, "definitions": shown},
    )
    talk(f"{len(lacking)} of {len(found)} definitions have gaps")
    raise typer.Exit(ExitCode.FINDINGS if strict and lacking else opened.exit_code())


# ---------------------------------------------------------------------------------- regressions

_DATE = "2026-03-01, 2026-03-01T12:00 (UTC), 30d or 4w ago"
Since = Annotated[
    str, typer.Option("--since", metavar="DATE", help=f"Results since this date are new: {_DATE}.")
]
Until = Annotated[
    Optional[str],
    typer.Option(
        "--until", metavar="DATE", show_default=False, help="Ignore results after this date."
    ),
]
Threshold = Annotated[
    float,
    typer.Option("--threshold", metavar="RATIO", help="Smallest ratio that is a change."),
]
Improvements = Annotated[bool, typer.Option("--improvements", help="Show improvements as well.")]

_CHANGE = (
    Column("change", "kind"),
    Column("definition", "after.definition"),
    Column("solution", "after.solution"),
    Column("hardware", "after.hardware"),
    Column("workload", "after.workload"),
    Column("before_ms", "before.latency_ms"),
    Column("after_ms", "after.latency_ms"),
    Column("ratio", "ratio", measured=True),
    Column("timer", "after.clock.timer"),
    Column("cache", "after.clock.cache"),
    Column("before_status", "before.status"),
    Column("after_status", "after.status"),
    Column("before_time", "before.timestamp"),
    Column("after_time", "after.timestamp"),
)


@tables.takes(report=tables.narrow_report_of, chosen=tables.format_of)
def regressions(
    report: tables.Report,
    chosen: tables.Format,
    since: Since,
    until: Until = None,
    threshold: Threshold = 1.05,
    improvements: Improvements = False,
) -> None:
    """Compare the latest results before a date with the latest after it.

    Compares each solution on each workload and device. Broken: passed before, fails now. Slower:
    the latency grew by the threshold and, if samples were kept, their middle halves do not overlap.
    Latencies with different timers or cache modes are not compared. Exits with 1 if there are
    regressions.
    """
    from fib_report.regressions import compare_dates, parse_date
    from fib_report.results import collect_results

    begin = parse_date(since)
    end = None if until is None else parse_date(until, end=True)
    results = collect_results(report.opened.trace_set, report.selection)
    found = compare_dates(report.checked(results), begin, end, threshold)
    shown = found.changes if improvements else found.regressions
    tables.write_tables(
        chosen,
        [("Changes" if improvements else "Regressions", _CHANGE, shown)],
        lambda: {
            "since": begin.isoformat(),
            "until": end.isoformat() if end else None,
            "threshold": threshold,
            "compared": found.compared,
            "new": found.added,
            "without_date": found.unreadable,
            "other_timer": found.other_clock,
            "changes": [document_of(_CHANGE, one) for one in found.changes],
        },
    )
    kinds = [change.kind for change in found.changes]
    counts = [f"{kinds.count(kind):,} {kind}" for kind in dict.fromkeys(kinds)]
    talk(f"compared: {found.compared:,}; " + (", ".join(counts) if counts else "no change"))
    for what, count in (
        ("new results, nothing to compare with", found.added),
        ("latencies not compared, different timers or cache modes", found.other_clock),
        ("results left out, invalid timestamps", found.unreadable),
    ):
        if count:
            talk(f"{what}: {count:,}")
    raise typer.Exit(ExitCode.FINDINGS if found.regressions else report.opened.exit_code())


# --------------------------------------------------------------------------------------- scores

Thresholds = Annotated[
    Optional[list[float]],
    typer.Option(
        "--p", metavar="P...", show_default=False, help="Speed-ups for fast_p and win rate."
    ),
]
BySolution = Annotated[bool, typer.Option("--by-solution", help="Rate solutions, not authors.")]
Reference = Annotated[
    bool,
    typer.Option("--reference", help="Compare with the reference instead of an author."),
]


@tables.takes(report=tables.report_of, chosen=tables.format_of)
def scores(
    report: tables.Report,
    chosen: tables.Format,
    baseline_author: Baseline = "baseline",
    baseline: tables.NamedBaselineOption = None,
    reference: Reference = False,
    thresholds: Thresholds = None,
    by_solution: BySolution = False,
) -> None:
    """Rate authors or solutions: scores, fast_p, win rates and means.

    Uses the latest result of each solution, workload and device; each device, timer and cache mode
    is rated separately. A task is one workload of one definition. fast_p: the share of all tasks
    that were solved more than p times as fast. win_p: the share of the solved tasks that were at
    least p times as fast. geomean, mean: of the speed-ups in solved tasks. score: the mean
    speed-up, 0 for solutions that ever failed. Entries with the same fast_p share a rank (=2) if
    the 95 % intervals of their geomeans overlap.
    """
    from fib_report.ratings import THRESHOLDS, make_scoreboard
    from fib_report.results import mixtures

    at = tuple(dict.fromkeys(thresholds or THRESHOLDS))
    for p in at:
        if not 0.0 <= p < float("inf"):
            raise ConfigError(f"--p {p:g}: give numbers of at least 0", hint="--p 1 1.5 2")
    if reference and baseline:
        raise ConfigError("give --baseline or --reference, not both")
    opened, against = report.opened, None if reference else baseline or baseline_author
    standings, over = make_scoreboard(opened.trace_set, report.selection, against, at, by_solution)
    if baseline and over is None:
        known = sorted({one.rating.name for one in standings})
        raise SelectionError(
            f"{opened.name} has no passing results of a solution or author {baseline!r}",
            hint=f"available {'solutions' if by_solution else 'authors'}: {', '.join(known[:8])}",
        )
    if not standings:
        raise SelectionError(
            f"{opened.name} has no results to rate that match the filters",
            hint="record some with 'fib run', or use fewer filters",
        )
    columns = _columns("solution" if by_solution else "author", at)
    tables.write_tables(
        chosen,
        [(f"Compared with {over or 'the reference'}", columns, standings)],
        lambda: {
            "baseline_author": over,
            "scores": [document_of(columns, one) for one in standings],
        },
    )
    tables.tell_mixtures(mixtures((one.hardware, (one.timer, one.cache)) for one in standings))
    unpaired = f"{over}, unpaired: from separate runs" if over else "the reference"
    talk(f"speed-ups are over {unpaired}")
    raise typer.Exit(opened.exit_code())


def _columns(whose: str, thresholds: tuple[float, ...]) -> list[Column]:
    return [
        Column("hardware", "hardware"),
        Column("timer", "timer", people=False),
        Column("cache", "cache", people=False),
        Column("timed", tables.clock_label, programs=False),
        *tables.rank_columns("rating.rank"),
        Column(whose, "rating.name"),
        Column("tasks", "rating.tasks"),
        Column("tried", "rating.tried"),
        Column("solved", "rating.solved"),
        Column("definitions", "rating.definitions"),
        Column("score", "score"),
        Column("geomean", "rating.speedup", measured=True),
        Column("mean", "rating.mean_speedup"),
        *(Column(f"fast_{p:g}", partial(_share, "fast", p)) for p in thresholds),
        *(Column(f"win_{p:g}", partial(_share, "wins", p)) for p in thresholds),
        Column("fastest", "rating.first"),
        Column("samples", "rating.samples"),
        Column("without_interval", "rating.without_interval", people=False),
        Column("dropped", "rating.dropped", people=False),
        Column("reference_before", "rating.reference_before", people=False),
        Column("notes", _notes, programs=False),
    ]


def _share(name: str, p: float, standing: Standing) -> Any:
    return getattr(standing.rating, name)[p]


def _notes(standing: Standing) -> str:
    one = standing.rating
    found = []
    if one.without_interval:
        found.append(f"no interval in {one.without_interval} of {one.compared} tasks")
    if one.dropped:
        found.append(f"{one.dropped} of {one.samples} samples dropped")
    if one.reference_before:
        found.append(f"reference timed separately in {one.reference_before} tasks")
    return "; ".join(found)


# ------------------------------------------------------------------------------------ visualize

OutputFile = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]
Title = Annotated[str, typer.Option("--title", help="Heading of the page.")]


@tables.takes(report=tables.narrow_report_of)
def visualize(
    report: tables.Report,
    output: OutputFile = Path("report.html"),
    title: Title = "Benchmark results",
) -> None:
    """Write a page with tables and plots.

    The page is a single HTML file that works in any browser, also offline.
    """
    from fib_report.coverage import find_gaps
    from fib_report.page import PageInfo, render_page

    (opened, selection), results = report, report.latest()
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    # With filters for solutions or authors, gaps would not be gaps of the dataset.
    narrow = selection.solutions or selection.authors
    gaps = [] if narrow else find_gaps(opened.trace_set, selection)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    info = PageInfo(title, opened.name, now, command)
    page = render_page(results, info, gaps, opened.trace_set).encode()
    write_output(output, page)
    talk(f"{len(results)} evaluations, {len(page) / 1024:,.0f} KiB")
    emit(str(output))
    raise typer.Exit(opened.exit_code())


# ------------------------------------------------------------------------------ validate-render


def _read_report(path: Path) -> Any:
    from fib_report.validation import read_validation

    return read_validation(path)


def validate_render(
    report: Annotated[
        Path,
        typer.Argument(
            callback=_read_report,
            metavar="REPORT.json",
            help="A file written by 'fib validate --outputs json'.",
        ),
    ],
    output: Annotated[
        Optional[Path],
        options.option("--output", "-o", metavar="FILE", help="HTML file to write."),
    ] = None,
) -> None:
    """Show a saved report of 'fib validate', or convert it to HTML.

    The page is a single HTML file that works in any browser, also offline.
    """
    # The callback has read the report; 'fib validate --outputs html' passes its findings directly.
    datasets: Any = report
    if output is None:
        show_findings(datasets)
        return
    from fib_report.validation import validation_page

    write_output(output, validation_page(datasets).encode())
    talk(f"report written to {output}")


def _app(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(command.__name__, cls=GreedyCommand)(command)
    return app


coverage_app, regressions_app = _app(coverage), _app(regressions)
scores_app, summary_app, visualize_app = _app(scores), _app(summary), _app(visualize)

"""``fib report regressions``: what became worse since a date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import (
    AsJson,
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
from flashinfer_bench.cli.output import set_up_logging, talk
from flashinfer_bench.cli.report import (
    Format,
    FormatOption,
    chosen_format,
    make_selection,
    require_results,
    write_tables,
)

if TYPE_CHECKING:
    from fib_report.regressions import Change, Comparison

_DATE = "2026-03-01, 2026-03-01T12:00 (UTC), 30d or 4w ago"
Since = Annotated[
    str, typer.Option("--since", metavar="DATE", help=f"Results from then on are new: {_DATE}.")
]
Until = Annotated[
    Optional[str],
    typer.Option(
        "--until", metavar="DATE", show_default=False, help="Ignore results after this date."
    ),
]
Threshold = Annotated[
    float, typer.Option("--threshold", metavar="RATIO", help="Smallest ratio that counts.")
]
Improvements = Annotated[bool, typer.Option("--improvements", help="Show what became better, too.")]

COLUMNS = (
    "change",
    "definition",
    "solution",
    "hardware",
    "workload",
    "before_ms",
    "after_ms",
    "ratio",
    "ratio_low",
    "ratio_high",
    "timer",
    "cache",
    "before_status",
    "after_status",
    "before_time",
    "after_time",
)


def regressions(
    since: Since,
    until: Until = None,
    threshold: Threshold = 1.05,
    improvements: Improvements = False,
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    authors: Authors = None,
    hardware: Hardware = None,
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Compare the latest results before a date with the latest since.

    The same solution on the same workload and device is compared. Broken: it passed and now fails.
    Slower: the latency grew by the threshold and, where samples were kept, their middle halves do
    not overlap. Latencies of different timers or cache modes are not compared. Exits with 1 if
    anything became worse.
    """
    set_up_logging(log_level)
    from fib_report.regressions import compare_dates, parse_date
    from flashinfer_bench.report import collect_results

    begin = parse_date(since)
    end = None if until is None else parse_date(until, end=True)
    opened = open_datasets(local, hub)
    selection = make_selection(
        definitions=definitions, solutions=solutions, op_types=op_types, authors=authors,
        hardware=hardware,
    )  # fmt: skip
    results = collect_results(opened.trace_set, selection)
    require_results(opened, results)
    found = compare_dates(results, begin, end, threshold)
    shown = found.changes if improvements else found.regressions
    write_tables(
        chosen_format(output_format, as_json),
        [("Changes" if improvements else "Regressions", COLUMNS, map(_row, shown))],
        lambda: _document(found, begin.isoformat(), end.isoformat() if end else None, threshold),
    )
    _tell(found)
    raise typer.Exit(ExitCode.FINDINGS if found.regressions else opened.exit_code())


def _row(change: Change) -> tuple[Any, ...]:
    before, after = change.before, change.after
    return (
        *(change.kind, after.definition, after.solution, after.hardware, after.workload),
        *(before.latency_ms, after.latency_ms, change.ratio, *(change.interval or (None, None))),
        *(after.clock.timer, after.clock.cache),
        *(before.status.value, after.status.value, before.timestamp, after.timestamp),
    )


def _document(found: Comparison, since: str, until: str | None, threshold: float) -> dict[str, Any]:
    return {
        "since": since,
        "until": until,
        "threshold": threshold,
        "compared": found.compared,
        "new": found.added,
        "without_date": found.unreadable,
        "other_timer": found.other_clock,
        "changes": [dict(zip(COLUMNS, _row(one), strict=True)) for one in found.changes],
    }


def _tell(found: Comparison) -> None:
    kinds = [change.kind for change in found.changes]
    counts = [f"{kinds.count(kind):,} {kind}" for kind in dict.fromkeys(kinds)]
    talk(f"compared: {found.compared:,}; " + (", ".join(counts) if counts else "no change"))
    if found.added:
        talk(f"without a result before: {found.added:,}")
    if found.other_clock:
        talk(
            f"latencies not compared, taken with another timer or cache mode: {found.other_clock:,}"
        )
    if found.unreadable:
        talk(f"left out, their time stamps are no dates: {found.unreadable:,}")


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("regressions", cls=GreedyCommand)(regressions)

"""``fib report``: look at recorded traces; nothing is run."""

from __future__ import annotations

import csv
import re
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from flashinfer_bench.cli import options, output
from flashinfer_bench.cli.datasets import OpenedDataset, open_datasets
from flashinfer_bench.cli.options import GreedyCommand, command_group, option
from flashinfer_bench.cli.output import Column, Columns, document_of, emit, set_up_logging, talk
from flashinfer_bench.errors import CapabilityError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flashinfer_bench.report import Best, Result, Selection, SolutionScore

app = command_group("report", "Summarise, rank, merge or draw recorded traces.")
app.callback()(lambda: None)  # else an only command would stand for the group


class Format(str, Enum):
    """How tables are written."""

    table = "table"
    csv = "csv"
    markdown = "markdown"
    json = "json"


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        case_sensitive=False,
        help="table: drawn on a terminal, tab-separated elsewhere; csv and json have every digit.",
    ),
]
NamedBaselineOption = Annotated[
    Optional[str],
    option(
        "--baseline",
        metavar="NAME",
        help="Compare with this solution, or with the fastest of this author; unpaired.",
    ),
]

ReportFile = Annotated[
    Optional[Path], option("--output", "-o", metavar="FILE", help="Default: stdout.")
]
Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Show the N best, with their ranks.")
]

Untrusted = Annotated[
    bool,
    typer.Option("--untrusted", help="Leave out workloads whose results can be had from memory."),
]


# ------------------------------------------- what the reports of plugins are made with, too

# One table: its title, columns and rows.
Table = tuple[str, Columns, "Iterable[Any]"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins, in full width too. And what marks text, so that it can be taken off."""


def make_selection(**names: list[str] | None) -> Selection:
    """Return the selection of a command line; options that were not given select everything."""
    from flashinfer_bench.report import Selection

    return Selection(**{field: tuple(values or ()) for field, values in names.items()})


def open_results(
    local: list[Path] | None, hub: Any, **names: list[str] | None
) -> tuple[OpenedDataset, list[Result]]:
    """Read datasets and return the latest results that fit the filters.

    Raises
    ------
    SelectionError
        If there are none.
    """
    from flashinfer_bench.report import collect_results, latest_results, with_intervals

    opened = open_datasets(local, hub)
    found = latest_results(collect_results(opened.trace_set, make_selection(**names)))
    results = with_intervals(found)
    require_results(opened, results)
    return opened, results


def require_results(opened: OpenedDataset, results: Sequence[Result]) -> None:
    """Refuse to report about nothing."""
    if not results:
        raise SelectionError(
            f"there is no trace of a run in {opened.name} that fits the filters",
            hint="record some with 'fib run', or widen the filters",
        )


def chosen_format(chosen: Format, as_json: bool) -> Format:
    """Return the format; ``--json`` is short for ``--format json``."""
    return Format.json if as_json else chosen


def write_tables(
    chosen: Format, tables: Sequence[Table], document: Callable[[], dict[str, Any]]
) -> None:
    """Write tables to stdout.

    Parameters
    ----------
    chosen : Format
        How.
    tables : sequence of (title, columns, rows)
        Separated by an empty line where they are several.
    document : callable
        Makes what JSON says instead of the tables; its version is added.
    """
    if chosen is Format.json:
        output.emit_document(**document())
        return
    for index, (title, columns, rows) in enumerate(tables):
        if index:
            emit("")
        if chosen is Format.table:
            output.table(title, columns, rows)
            continue
        names, lines = output.laid_out(columns, rows, drawn=chosen is Format.markdown)
        if chosen is Format.csv:
            # Names of devices are among those of the columns.
            cells = [map(_csv_cell, line) for line in (names, *lines)]
            csv.writer(sys.stdout, lineterminator="\n").writerows(cells)
        else:
            _write_markdown(title, names, lines)


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else output.printable(str(output.to_plain(value)))
    # Names come from files that anyone may have written, and a spreadsheet would run such a cell
    # (OWASP, "CSV injection"). It takes the apostrophe for "what follows is text".
    is_formula = not isinstance(value, (int, float)) and text.startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def _write_markdown(title: str, names: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    if title:
        emit(f"### {_markdown(title)}\n")
    emit(_markdown_row(names))
    rules = ("---:" if right else "---" for right in output.numeric_columns(names, lines))
    emit(f"|{'|'.join(rules)}|")
    for line in lines:
        emit(_markdown_row([output.rounded(value) for value in line]))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown, cells))} |"


def _markdown(text: str) -> str:
    """Return `text` so that Markdown shows it as it is: no markup, no HTML, no new column."""
    text = output.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[\\`*\[\]|~#]", r"\\\g<0>", text)
    # Within a word an underscore means nothing; names are full of them.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def rank_number(rank: str | None) -> int | None:
    """Return a rank for programs: without the mark of those that share it."""
    return int(rank.lstrip("=")) if rank else None


def is_tied(rank: str | None) -> bool:
    """Return whether others share a rank."""
    return bool(rank) and str(rank).startswith("=")


def clock_label(one: Any) -> str:
    """Return timer, cache mode and stopping rules of a score as people read it."""
    words = [one.timer or "unknown timer", one.cache, *getattr(one, "stop_rules", ())]
    return " ".join(word for word in words if word)


def tell_mixtures(mixtures: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Say on which devices several timers or cache modes were used."""
    from flashinfer_bench.report.results import label_of

    for hardware, several in mixtures.items():
        labels = "; ".join(map(label_of, several))
        talk(f"note: latencies on {hardware} were taken in several ways, ranked apart: {labels}")


# ---------------------------------------------------------------------------- the commands


@app.command("best", cls=GreedyCommand)
def best(
    local: options.Local = None,
    hub: options.Hub = None,
    definitions: options.Definitions = None,
    solutions: options.Solutions = None,
    op_types: options.OpTypes = None,
    authors: options.Authors = None,
    hardware: options.Hardware = None,
    baseline: NamedBaselineOption = None,
    top: Top = 1,
    untrusted: Untrusted = False,
    output_format: FormatOption = Format.table,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show the fastest correct solution of each definition.

    One for each device, timer and cache mode. It has to have passed on every workload on which it
    was last evaluated, and none of its latencies may be disputed; among those with the most
    workloads the lowest geometric mean of the latencies wins. Its lead is the runner-up's geometric
    mean over its own. Solutions whose 95 % intervals overlap share a rank (=1): which of them is
    faster is not known.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report import best_solutions, score_solutions
    from flashinfer_bench.report.results import mixtures

    names = {"definitions": definitions, "op_types": op_types, "hardware": hardware}
    narrowed = {"solutions": solutions, "authors": authors}
    # The baseline need not be among those that are ranked.
    opened, everything = open_results(local, hub, **names, **({} if baseline else narrowed))
    results = everything
    if baseline and (solutions or authors):
        wanted = make_selection(**narrowed)
        wanted.check_names(opened.trace_set)
        results = [one for one in everything if wanted.wants_solution(one.solution, one.author)]
        require_results(opened, results)
    if untrusted:
        results = [one for one in results if not one.replayable]
        require_results(opened, results)
    scores = score_solutions(results)
    found = best_solutions(scores)
    replayable = sorted({one.definition for one in scores if one.replayable})
    disputed = sorted({one.solution for one in scores if one.disputed})
    loose = sorted({one.solution for one in scores if one.loose})
    against = _comparison(everything, baseline) if baseline else lambda _: None
    rows = [
        _Row(one, score, against(score))
        for one in found
        for score in (one.ranked or (one.score,))[:top]
    ]
    columns = _columns(with_baseline=bool(baseline))
    write_tables(
        chosen_format(output_format, as_json),
        [("Best solutions", columns, rows)],
        lambda: {
            "baseline": baseline,
            "disputed": disputed,
            "replayable": replayable,
            "loose_tolerance": loose,
            "best": [_document(one, columns, results) for one in rows],
        },
    )
    tell_mixtures(mixtures((one.hardware, one.conditions) for one in results if one.passed))
    if not found:
        talk("no solution passed on all its workloads")
    if disputed:
        told = "not ranked, as latencies are disputed ('fib run --resume' measures again)"
        talk(f"{told}: {', '.join(disputed)}")
    if replayable:
        told = "some workloads show every call the same values, so results can be kept"
        talk(f"{told} (--untrusted leaves them out): {', '.join(replayable)}")
    if loose:
        told = "loose tolerance: right within 0.01, but not by 'fib run --tolerance dtype'"
        talk(f"{told}: {', '.join(loose)}")
    tied = [one for one in found if one.ties]
    if tied:
        talk(f"{len(tied)} of {len(found)} rankings have no clear winner: intervals overlap")
    if baseline:
        talk(f"vs_baseline: latency of {baseline} over the solution's, unpaired: separate runs")
    raise typer.Exit(opened.exit_code())


def _comparison(results: Sequence[Result], baseline: str) -> Callable[[SolutionScore], Any]:
    try:
        from flashinfer_bench.report import NamedBaseline
    except ImportError as error:
        raise CapabilityError(f"--baseline: {error}") from error
    compare: Callable[[SolutionScore], Any] = NamedBaseline(results, baseline).against
    return compare


class _Row(NamedTuple):
    """A line of the table: one of the ranked solutions of a definition."""

    best: Best
    score: SolutionScore
    against: Any

    @property
    def leads(self) -> bool:
        return self.score is self.best.score


def _columns(*, with_baseline: bool) -> list[Column]:
    against = [
        Column("vs_baseline", lambda r: r.against and r.against.speedup, measured=True),
        Column("vs_workloads", lambda r: r.against and r.against.workloads, people=False),
    ]
    return [
        Column("definition", "score.definition"),
        Column("op_type", "score.op_type", people=False),
        Column("hardware", "score.hardware"),
        Column("timer", "score.timer", people=False),
        Column("cache", "score.cache", people=False),
        Column("rank", "score.rank", programs=False),
        Column("rank", lambda r: rank_number(r.score.rank), people=False),
        Column("tied", lambda r: is_tied(r.score.rank), people=False),
        Column("solution", "score.solution"),
        Column("author", "score.author", people=False),
        Column("geomean_ms", "score.latency", measured=True),
        Column("speedup", "score.reference_speedup", measured=True),
        *(against if with_baseline else ()),
        Column("workloads", "score.passed"),
        Column("solutions", "best.tried", people=False),
        Column("lead", lambda r: r.best.measured_lead if r.leads else None, measured=True),
        Column("samples", "score.samples", people=False),
        Column("stop_rule", lambda r: " ".join(r.score.stop_rules), people=False),
        Column("timed", lambda r: _timed(r.score), programs=False),
        Column("notes", lambda r: "; ".join(_notes(r))),
    ]


def _timed(score: SolutionScore) -> str:
    label = clock_label(score)
    return f"{label}, {score.samples:,} samples" if score.samples else label


def _notes(row: _Row) -> Iterator[str]:
    score = row.score
    if row.leads and row.best.ties:
        names = ", ".join(one.solution for one in row.best.ties)
        yield f"not distinguishable from {names}"
    if score.without_interval:
        yield f"no interval on {score.without_interval} of {score.passed} workloads"
    if score.dropped:
        yield f"{score.dropped} of {score.samples} samples dropped"
    if score.loose:
        yield f"loose tolerance on {score.loose} of {score.passed} workloads"
    before = score.references.get("before", 0)
    if before:
        yield f"reference timed before, not beside, on {before} of {score.passed} workloads"


def _document(row: _Row, columns: Sequence[Column], results: Sequence[Result]) -> dict[str, Any]:
    best, score = row.best, row.score
    runner_up = best.runner_up.solution if best.runner_up is not None else None
    mine = (score.definition, score.solution, score.hardware, (score.timer, score.cache))
    return {
        **document_of(columns, row),
        "language": score.language,
        "runner_up": runner_up if row.leads else None,
        "not_distinguishable": [one.solution for one in best.ties] if row.leads else [],
        "without_interval": score.without_interval,
        "dropped": score.dropped,
        "references": score.references,
        "results": [
            document_of(_RESULT, one)
            for one in results
            if one.passed and (one.definition, one.solution, one.hardware, one.conditions) == mine
        ],
    }


def _measured(value: Any, ends: Any) -> Any:
    return None if value is None else SimpleNamespace(value=value, ends=ends)


# What JSON tells of the latency on one workload.
_RESULT = (
    Column("workload", "workload"),
    Column("axes", "axes"),
    Column("latency_ms", lambda r: _measured(r.latency_ms, r.interval_ms), measured=True),
    Column("speedup", lambda r: _measured(r.speedup, r.speedup_interval), measured=True),
    Column("samples", "sample_total"),
    Column("dropped", "dropped"),
    Column("stop_rule", "clock.stop_rule"),
    Column("reference", "clock.reference"),
    Column("timestamp", "timestamp"),
)


class _PluginReports:
    """The commands of registered reports, as attributes of their names."""

    def __getattr__(self, name: str) -> typer.Typer:
        if name.startswith("__"):
            raise AttributeError(name)

        def report(
            local: options.Local = None,
            hub: options.Hub = None,
            target: ReportFile = None,
            log_level: options.LogLevel = None,
        ) -> None:
            set_up_logging(log_level)
            from flashinfer_bench.plugins import default_catalog

            draw = default_catalog().find("report", name).load()
            opened = open_datasets(local, hub)
            text = str(draw(opened.trace_set))
            if target is None:
                emit(text)
            else:
                output.write_output(target, text.encode())
                emit(str(target))
            raise typer.Exit(opened.exit_code())

        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        made.command(name, cls=GreedyCommand)(report)
        return made


plugin_reports = _PluginReports()

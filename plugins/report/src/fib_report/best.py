"""``fib report best``: the fastest correct solution of each definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from fib_report import tables
from flashinfer_bench.cli import options
from flashinfer_bench.cli.output import Column, document_of, set_up_logging, talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fib_report.baselines import Against
    from fib_report.results import Result
    from fib_report.roofline import Roofline, Rooflines
    from fib_report.scores import Best, SolutionScore

Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Show the N best with their ranks.")
]
Untrusted = Annotated[
    bool,
    typer.Option("--untrusted", help="Leave out replayable workloads."),
]

# Definition, solution, device, and timer with cache mode.
_Place = tuple[str, str, str, "tuple[str, str]"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("best", cls=options.GreedyCommand)
def best(
    local: options.Local = None,
    hub: options.Hub = None,
    definitions: options.Definitions = None,
    solutions: options.Solutions = None,
    op_types: options.OpTypes = None,
    authors: options.Authors = None,
    hardware: options.Hardware = None,
    baseline: tables.NamedBaselineOption = None,
    top: Top = 1,
    untrusted: Untrusted = False,
    output_format: tables.FormatOption = tables.Format.table,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show the fastest correct solution of each definition.

    Each device, timer and cache mode has its own ranking. Only solutions that passed on every
    workload in their latest evaluations are ranked, without disputed latencies; of those with the
    most workloads, the one with the lowest geometric mean latency wins. The lead is the runner-up's
    geometric mean over the winner's. Solutions whose 95 % intervals overlap share a rank (=1): it
    is not known which of them is faster.
    """
    set_up_logging(log_level)
    from fib_report.baselines import NamedBaseline
    from fib_report.results import mixtures
    from fib_report.roofline import Rooflines
    from fib_report.scores import best_solutions, score_solutions

    names = {"definitions": definitions, "op_types": op_types, "hardware": hardware}
    narrowed = {"solutions": solutions, "authors": authors}
    # The baseline may be left out by the filters.
    opened, everything = tables.open_results(local, hub, **names, **({} if baseline else narrowed))
    results = everything
    if baseline and (solutions or authors):
        wanted = tables.make_selection(**narrowed)
        wanted.check_names(opened.trace_set)
        results = [one for one in everything if wanted.wants_solution(one.solution, one.author)]
        tables.require_results(opened, results)
    if untrusted:
        results = [one for one in results if not one.replayable]
        tables.require_results(opened, results)
    scores = score_solutions(results)
    found = best_solutions(scores)
    replayable = sorted({one.definition for one in scores if one.replayable})
    disputed = sorted({one.solution for one in scores if one.disputed})
    loose = sorted({one.solution for one in scores if one.loose})
    against = NamedBaseline(everything, baseline).against if baseline else lambda _: None
    rooflines = Rooflines(opened.trace_set.definitions, opened.trace_set.root)
    runs: dict[_Place, list[Result]] = {}
    for result in results:
        if result.passed:
            place = result.definition, result.solution, result.hardware, result.conditions
            runs.setdefault(place, []).append(result)
    rows = []
    for one in found:
        for score in (one.ranked or (one.score,))[:top]:
            place = score.definition, score.solution, score.hardware, (score.timer, score.cache)
            share = rooflines.mean_share(runs[place])
            rows.append(_Row(one, score, against(score), share, runs[place]))
    has_limits = any(row.share is not None for row in rows)
    columns = _columns(with_baseline=bool(baseline), has_limits=has_limits)
    tables.write_tables(
        tables.chosen_format(output_format, as_json),
        [("Best solutions", columns, rows)],
        lambda: {
            "baseline": baseline,
            "disputed": disputed,
            "replayable": replayable,
            "loose_tolerance": loose,
            "best": [_document(one, columns, rooflines) for one in rows],
        },
    )
    tables.tell_mixtures(mixtures((one.hardware, one.conditions) for one in results if one.passed))
    if not found:
        talk("no solution passed on all of its workloads")
    if disputed:
        told = "not ranked, because latencies are disputed ('fib run --resume' measures them again)"
        talk(f"{told}: {', '.join(disputed)}")
    if replayable:
        told = "definitions with replayable workloads, whose results may come from memory"
        talk(f"{told} (--untrusted leaves these out): {', '.join(replayable)}")
    if loose:
        told = "loose tolerance: passed within 0.01, would fail with 'fib run --tolerance dtype'"
        talk(f"{told}: {', '.join(loose)}")
    tied = [one for one in found if one.ties]
    if tied:
        talk(f"{len(tied)} of {len(found)} rankings have no clear winner: intervals overlap")
    if baseline:
        talk(f"vs_baseline: latency of {baseline} over the solution's; unpaired (separate runs)")
    raise typer.Exit(opened.exit_code())


class _Row(NamedTuple):
    """A row of the table: one of the ranked solutions of a definition."""

    best: Best
    score: SolutionScore
    against: Optional[Against]
    share: Optional[float]  # share of the limit
    runs: Sequence[Result]

    @property
    def leads(self) -> bool:
        return self.score is self.best.score


def _columns(*, with_baseline: bool, has_limits: bool) -> list[Column]:
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
        Column("rank", lambda r: tables.rank_number(r.score.rank), people=False),
        Column("tied", lambda r: tables.is_tied(r.score.rank), people=False),
        Column("solution", "score.solution"),
        Column("author", "score.author", people=False),
        Column("geomean_ms", "score.latency", measured=True),
        Column("speedup", "score.reference_speedup", measured=True),
        *(against if with_baseline else ()),
        # The table shows it only after `fib calibrate` has measured the device.
        Column("share_of_limit", "share", people=has_limits),
        Column("workloads", "score.passed"),
        Column("solutions", "best.tried", people=False),
        Column("lead", lambda r: r.best.measured_lead if r.leads else None, measured=True),
        Column("samples", "score.samples", people=False),
        Column("stop_rule", lambda r: " ".join(r.score.stop_rules), people=False),
        Column("timed", lambda r: _timed(r.score), programs=False),
        Column("notes", lambda r: "; ".join(_notes(r))),
    ]


def _timed(score: SolutionScore) -> str:
    label = tables.clock_label(score)
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
        yield f"reference timed separately on {before} of {score.passed} workloads"


def _document(row: _Row, columns: Sequence[Column], rooflines: Rooflines) -> dict[str, Any]:
    best, score = row.best, row.score
    runner_up = best.runner_up.solution if best.runner_up is not None else None
    return {
        **document_of(columns, row),
        "language": score.language,
        "runner_up": runner_up if row.leads else None,
        "not_distinguishable": [one.solution for one in best.ties] if row.leads else [],
        "without_interval": score.without_interval,
        "dropped": score.dropped,
        "references": score.references,
        "results": [
            {**document_of(_RESULT, one), **_limits(rooflines.of(one))} for one in row.runs
        ],
    }


def _limits(roofline: Optional[Roofline]) -> Mapping[str, Any]:
    """Return the JSON fields for the work of a call and the shortest time it can take."""
    if roofline is None:
        return {}
    work = roofline.work
    return {
        "work": {"bytes": work.nbytes, "operations": work.operations, "basis": work.basis},
        "gb_per_s": roofline.gb_per_s,
        "tflop_per_s": roofline.tflop_per_s,
        "limit_ms": roofline.limit_ms,
        "limited_by": roofline.limited_by,
        "share_of_limit": roofline.share,
    }


def _measured(value: Any, ends: Any) -> Any:
    return None if value is None else SimpleNamespace(value=value, ends=ends)


# The JSON fields for one workload.
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

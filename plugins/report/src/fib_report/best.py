"""``fib report best``: the fastest correct solution of each definition."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from fib_report import tables
from flashinfer_bench.cli import options
from flashinfer_bench.cli.output import Column, document_of, talk

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

# By the field of a score that has it: what is named, and what is said of it.
_DOUBTS = {
    "disputed": (
        "solution",
        "not ranked, because latencies are disputed ('fib run --resume' measures them again)",
    ),
    "replayable": (
        "definition",
        "definitions with replayable workloads, whose results may come from memory (--untrusted "
        "leaves these out)",
    ),
    "loose": (
        "solution",
        "loose tolerance: passed within 0.01, would fail with 'fib run --tolerance dtype'",
    ),
}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("best", cls=options.GreedyCommand)
@tables.takes(report=tables.narrow_report_of, chosen=tables.format_of)
def best(
    report: tables.Report,
    chosen: tables.Format,
    baseline: tables.NamedBaselineOption = None,
    top: Top = 1,
    untrusted: Untrusted = False,
) -> None:
    """Show the fastest correct solution of each definition.

    Each device, timer and cache mode has its own ranking. Only solutions that passed on every
    workload in their latest evaluations are ranked, without disputed latencies; of those with the
    most workloads, the one with the lowest geometric mean latency wins. The lead is the runner-up's
    geometric mean over the winner's. Solutions whose 95 % intervals overlap share a rank (=1): it
    is not known which of them is faster.
    """
    from fib_report.baselines import NamedBaseline
    from fib_report.results import mixtures
    from fib_report.roofline import Rooflines
    from fib_report.scores import best_solutions, score_solutions

    (opened, wanted), every_solution = report, {"solutions": (), "authors": ()}
    wanted.check_names(opened.trace_set)
    # The baseline may be left out by the filters.
    everything = report.latest(replace(wanted, **every_solution) if baseline else wanted)
    results = report.checked(
        [
            one
            for one in everything
            if wanted.wants_solution(one.solution, one.author)
            and not (untrusted and one.replayable)
        ]
    )
    scores = score_solutions(results)
    found = best_solutions(scores)
    doubts = {
        mark: sorted({getattr(one, named) for one in scores if getattr(one, mark)})
        for mark, (named, _) in _DOUBTS.items()
    }
    against = NamedBaseline(everything, baseline).against if baseline else lambda _: None
    rooflines = Rooflines(opened.trace_set.definitions, opened.trace_set.root)
    runs: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        if result.passed:
            runs.setdefault(result.key, []).append(result)
    rows = []
    for one in found:
        for score in (one.ranked or (one.score,))[:top]:
            mine, first = runs[score.key], one if score is one.score else None
            share = rooflines.mean_share(mine)
            rows.append(_Row(score, one.tried, first, against(score), share, mine))
    has_limits = any(row.share is not None for row in rows)
    columns = _columns(with_baseline=bool(baseline), has_limits=has_limits)
    tables.write_tables(
        chosen,
        [("Best solutions", columns, rows)],
        lambda: {
            "baseline": baseline,
            "disputed": doubts["disputed"],
            "replayable": doubts["replayable"],
            "loose_tolerance": doubts["loose"],
            "best": [_document(one, columns, rooflines) for one in rows],
        },
    )
    tables.tell_mixtures(mixtures((one.hardware, one.conditions) for one in results if one.passed))
    if not found:
        talk("no solution passed on all of its workloads")
    for mark, (_, told) in _DOUBTS.items():
        if doubts[mark]:
            talk(f"{told}: {', '.join(doubts[mark])}")
    tied = [one for one in found if one.ties]
    if tied:
        talk(f"{len(tied)} of {len(found)} rankings have no clear winner: intervals overlap")
    if baseline:
        talk(f"vs_baseline: latency of {baseline} over the solution's; unpaired (separate runs)")
    raise typer.Exit(opened.exit_code())


class _Row(NamedTuple):
    """A row of the table: one of the ranked solutions of a definition."""

    score: SolutionScore
    tried: int
    first: Optional[Best]  # if it is the best
    against: Optional[Against]
    share: Optional[float]  # share of the limit
    runs: Sequence[Result]

    @property
    def ties(self) -> list[str]:
        return [one.solution for one in self.first.ties] if self.first is not None else []

    @property
    def runner_up(self) -> Optional[str]:
        second = self.first.runner_up if self.first is not None else None
        return second.solution if second is not None else None


def _columns(*, with_baseline: bool, has_limits: bool) -> list[Column]:
    json_only = partial(Column, people=False, programs=False, json=True)
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
        *tables.rank_columns("score.rank"),
        Column("solution", "score.solution"),
        Column("author", "score.author", people=False),
        Column("geomean_ms", "score.latency", measured=True),
        Column("speedup", "score.speedup", measured=True),
        *(against if with_baseline else ()),
        # The table shows it only after `fib calibrate` has measured the device.
        Column("share_of_limit", "share", people=has_limits),
        Column("workloads", "score.passed"),
        Column("solutions", "tried", people=False),
        Column("lead", lambda r: r.first and r.first.measured_lead, measured=True),
        Column("samples", "score.samples", people=False),
        Column("stop_rule", lambda r: " ".join(r.score.stop_rules), people=False),
        Column("timed", lambda r: _timed(r.score), programs=False),
        Column("notes", lambda r: "; ".join(_notes(r))),
        json_only("language", "score.language"),
        json_only("runner_up", "runner_up"),
        json_only("not_distinguishable", "ties"),
        json_only("without_interval", "score.without_interval"),
        json_only("dropped", "score.dropped"),
        json_only("references", "score.references"),
    ]


def _timed(score: SolutionScore) -> str:
    label = tables.clock_label(score)
    return f"{label}, {score.samples:,} samples" if score.samples else label


def _notes(row: _Row) -> Iterator[str]:
    score = row.score
    if row.ties:
        yield f"not distinguishable from {', '.join(row.ties)}"
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
    results = [{**document_of(_RESULT, one), **_limits(rooflines.of(one))} for one in row.runs]
    return {**document_of(columns, row), "results": results}


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

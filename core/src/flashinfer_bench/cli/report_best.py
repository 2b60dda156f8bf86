"""``fib report best``: the fastest correct solution of each definition."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

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
from flashinfer_bench.cli.output import talk
from flashinfer_bench.cli.report_common import (
    Format,
    FormatOption,
    NamedBaselineOption,
    chosen_format,
    open_results,
    require_results,
    write_tables,
)
from flashinfer_bench.cli.report_measures import (
    Column,
    document_of,
    is_tied,
    marks,
    measured_table,
    rank_number,
    sampling,
    tell_mixtures,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.report import Best, Result, SolutionScore
    from flashinfer_bench.report.baseline import Against, NamedBaseline

Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Show the N best, with their ranks.")
]


class _Row(NamedTuple):
    """A line of the table: one of the ranked solutions of a definition."""

    best: Best
    score: SolutionScore
    against: Optional[Against]

    @property
    def leads(self) -> bool:
        return self.score is self.best.score


def best(
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    authors: Authors = None,
    hardware: Hardware = None,
    baseline: NamedBaselineOption = None,
    top: Top = 1,
    output_format: FormatOption = Format.table,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Show the fastest correct solution of each definition.

    One for each device, timer and cache mode. It has to have passed on every workload on which it
    was last evaluated; among those with the most workloads the lowest geometric mean of the
    latencies wins. Its lead is the runner-up's geometric mean over its own. Solutions whose 95 %
    intervals overlap share a rank (=1): which of them is faster is not known.
    """
    set_up_logging(log_level)
    from flashinfer_bench.report import Selection, best_solutions, score_solutions
    from flashinfer_bench.report.baseline import NamedBaseline
    from flashinfer_bench.report.conditions import mixtures

    names = {"definitions": definitions, "op_types": op_types, "hardware": hardware}
    narrowed = {"solutions": solutions, "authors": authors}
    # The baseline need not be among those that are ranked.
    opened, everything = open_results(local, hub, **names, **({} if baseline else narrowed))
    results = everything
    if baseline and (solutions or authors):
        wanted = Selection(solutions=tuple(solutions or ()), authors=tuple(authors or ()))
        wanted.check_names(opened.trace_set)
        results = [one for one in everything if wanted.wants_solution(one.solution, one.author)]
        require_results(opened, results)
    found = best_solutions(score_solutions(results))
    rows = _rows(found, NamedBaseline(everything, baseline) if baseline else None, top)
    columns = _columns(baseline)
    chosen = chosen_format(output_format, as_json)
    write_tables(
        chosen,
        [measured_table("Best solutions", columns, rows, chosen)],
        lambda: {"baseline": baseline, "best": [_document(one, columns, results) for one in rows]},
    )
    tell_mixtures(mixtures((one.hardware, one.conditions) for one in results if one.passed))
    _tell(found, baseline)
    raise typer.Exit(opened.exit_code())


def _rows(found: Sequence[Best], baseline: Optional[NamedBaseline], top: int) -> list[_Row]:
    return [
        _Row(one, score, baseline.against(score) if baseline is not None else None)
        for one in found
        for score in (one.ranked or (one.score,))[:top]
    ]


def _columns(baseline: Optional[str]) -> list[Column]:
    against = [
        Column("vs_baseline", lambda r: r.against and r.against.speedup, measured=True),
        Column("vs_workloads", lambda r: r.against and r.against.workloads, people=False),
    ]
    return [
        Column("definition", lambda r: r.score.definition),
        Column("op_type", lambda r: r.score.op_type, people=False),
        Column("hardware", lambda r: r.score.hardware),
        Column("timer", lambda r: r.score.timer, people=False),
        Column("cache", lambda r: r.score.cache, people=False),
        Column("rank", lambda r: r.score.rank, programs=False),
        Column("rank", lambda r: rank_number(r.score.rank), people=False),
        Column("tied", lambda r: is_tied(r.score.rank), people=False),
        Column("solution", lambda r: r.score.solution),
        Column("author", lambda r: r.score.author, people=False),
        Column("geomean_ms", lambda r: r.score.latency, measured=True),
        Column("speedup", lambda r: r.score.reference_speedup, measured=True),
        *(against if baseline else ()),
        Column("workloads", lambda r: r.score.passed),
        Column("solutions", lambda r: r.best.tried, people=False),
        Column("lead", lambda r: r.best.measured_lead if r.leads else None, measured=True),
        Column("samples", lambda r: r.score.samples, people=False),
        Column("stop_rule", lambda r: " ".join(r.score.stop_rules), people=False),
        Column("timed", lambda r: sampling(r.score), programs=False),
        Column("notes", _notes),
    ]


def _notes(row: _Row) -> str:
    names = [one.solution for one in row.best.ties] if row.leads else []
    told = f"not distinguishable from {', '.join(names)}" if names else ""
    return "; ".join(note for note in (told, marks(row.score)) if note)


def _document(row: _Row, columns: Sequence[Column], results: Sequence[Result]) -> dict[str, Any]:
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
        "results": [_result(one) for one in results if _is_in(one, score)],
    }


def _is_in(result: Result, score: SolutionScore) -> bool:
    mine = (result.definition, result.solution, result.hardware, result.conditions)
    theirs = (score.definition, score.solution, score.hardware, (score.timer, score.cache))
    return result.passed and mine == theirs


def _result(one: Result) -> dict[str, Any]:
    """Return what is known of the latency on one workload."""
    low, high = one.interval_ms or (None, None)
    speedup_low, speedup_high = one.speedup_interval or (None, None)
    return {
        "workload": one.workload,
        "axes": one.axes,
        "latency_ms": one.latency_ms,
        "latency_ms_low": low,
        "latency_ms_high": high,
        "speedup": one.speedup,
        "speedup_low": speedup_low,
        "speedup_high": speedup_high,
        "samples": one.sample_total,
        "dropped": one.dropped,
        "stop_rule": one.clock.stop_rule,
        "reference": one.clock.reference,
        "timestamp": one.timestamp,
    }


def _tell(found: Sequence[Best], baseline: Optional[str]) -> None:
    if not found:
        talk("no solution passed on all its workloads")
    tied = [one for one in found if one.ties]
    if tied:
        talk(f"in {len(tied)} of {len(found)} rankings the first cannot be told from others")
    if baseline:
        talk(f"vs_baseline: latency of {baseline} over the solution's, unpaired: separate runs")

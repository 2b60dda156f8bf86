"""Summaries, rankings and pages made from recorded traces; nothing here prints or runs anything."""

from __future__ import annotations

from flashinfer_bench.report.causes import cause
from flashinfer_bench.report.coverage import DefinitionCoverage, find_gaps
from flashinfer_bench.report.intervals import Measured
from flashinfer_bench.report.page import PageInfo, render_page
from flashinfer_bench.report.ratings import Rating, fastp_curves, rate_authors
from flashinfer_bench.report.regressions import Change, Comparison, compare_dates, parse_date
from flashinfer_bench.report.results import (
    Result,
    Selection,
    collect_results,
    latest_results,
    with_intervals,
)
from flashinfer_bench.report.scores import Best, SolutionScore, best_solutions, score_solutions
from flashinfer_bench.report.summary import (
    AuthorRank,
    DatasetSummary,
    DefinitionCounts,
    TimingCounts,
    summarize,
)

__all__ = [
    "AuthorRank",
    "Best",
    "Change",
    "Comparison",
    "DatasetSummary",
    "DefinitionCounts",
    "DefinitionCoverage",
    "Measured",
    "PageInfo",
    "Rating",
    "Result",
    "Selection",
    "SolutionScore",
    "TimingCounts",
    "best_solutions",
    "cause",
    "collect_results",
    "compare_dates",
    "fastp_curves",
    "find_gaps",
    "latest_results",
    "parse_date",
    "rate_authors",
    "render_page",
    "score_solutions",
    "summarize",
    "with_intervals",
]

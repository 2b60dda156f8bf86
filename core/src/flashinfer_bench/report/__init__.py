"""Summaries, rankings and pages made from recorded traces; nothing here prints or runs anything."""

from __future__ import annotations

from flashinfer_bench.report.page import PageInfo, render_page
from flashinfer_bench.report.results import Result, Selection, collect_results, latest_results
from flashinfer_bench.report.scores import Best, SolutionScore, best_solutions, score_solutions
from flashinfer_bench.report.summary import (
    AuthorRank,
    DatasetSummary,
    DefinitionCounts,
    summarize,
)

__all__ = [
    "AuthorRank",
    "Best",
    "DatasetSummary",
    "DefinitionCounts",
    "PageInfo",
    "Result",
    "Selection",
    "SolutionScore",
    "best_solutions",
    "collect_results",
    "latest_results",
    "render_page",
    "score_solutions",
    "summarize",
]

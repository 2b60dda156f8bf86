"""Results and rankings made from recorded traces; nothing here prints or runs anything.

Summaries, pages, scores, coverage and regressions are in the distribution ``fib-report``; their
names can be imported from here, too.
"""

from __future__ import annotations

from flashinfer_bench._lazy import moved
from flashinfer_bench.report.results import (
    Result,
    Selection,
    collect_results,
    latest_results,
    with_intervals,
)
from flashinfer_bench.report.scores import (
    Best,
    Measured,
    SolutionScore,
    best_solutions,
    score_solutions,
)

__all__ = [
    "Best",
    "Measured",
    "Result",
    "Selection",
    "SolutionScore",
    "best_solutions",
    "collect_results",
    "latest_results",
    "score_solutions",
    "with_intervals",
]

__getattr__, _ = moved(__name__, "fib_report", "fib-report")

"""Results and rankings made from recorded traces; nothing here prints or runs anything.

Summaries, pages, scores, coverage and regressions are in the distribution ``fib-report``; their
names can be imported from here, too.
"""

from __future__ import annotations

from flashinfer_bench._lazy import moved
from flashinfer_bench.report.results import Result as Result
from flashinfer_bench.report.results import Selection as Selection
from flashinfer_bench.report.results import collect_results as collect_results
from flashinfer_bench.report.results import latest_results as latest_results
from flashinfer_bench.report.results import with_intervals as with_intervals
from flashinfer_bench.report.scores import Best as Best
from flashinfer_bench.report.scores import Measured as Measured
from flashinfer_bench.report.scores import SolutionScore as SolutionScore
from flashinfer_bench.report.scores import best_solutions as best_solutions
from flashinfer_bench.report.scores import score_solutions as score_solutions

__getattr__, _ = moved(__name__, "fib_report")

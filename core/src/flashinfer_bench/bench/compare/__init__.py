"""Comparing two solutions: which is faster, on the same inputs, side by side.

`Comparer` runs them; `compare_recorded` takes the samples of traces that are on disk.
"""

from flashinfer_bench.bench.compare.comparer import Comparer
from flashinfer_bench.bench.compare.contest import CompareSettings
from flashinfer_bench.bench.compare.result import Answer, ContestResult, Obstacle, answer

__all__ = ["Answer", "CompareSettings", "Comparer", "ContestResult", "Obstacle", "answer"]

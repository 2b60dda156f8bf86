"""Comparing two solutions: which is faster, on the same inputs, side by side.

`Comparer` runs them; `compare_recorded` takes the samples of traces that are on disk.
"""

from fib_compare.paired.comparer import Comparer, CompareSettings
from fib_compare.paired.result import Answer, ContestResult, Obstacle, answer

__all__ = ["Answer", "CompareSettings", "Comparer", "ContestResult", "Obstacle", "answer"]

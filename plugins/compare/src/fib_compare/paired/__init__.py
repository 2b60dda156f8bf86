"""Comparison of two solutions on the same inputs.

`Comparer` runs them in turn; `compare_recorded` uses the samples of recorded traces.
"""

from fib_compare.paired.comparer import Comparer, CompareSettings
from fib_compare.paired.result import Answer, ContestResult, Obstacle, answer

__all__ = ["Answer", "CompareSettings", "Comparer", "ContestResult", "Obstacle", "answer"]

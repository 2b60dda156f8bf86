"""Scores of authors and solutions: `fib_report.authors`, of the distribution ``fib-report``."""

from __future__ import annotations

from flashinfer_bench._lazy import moved

__getattr__, __dir__ = moved(__name__, "fib_report.authors", "fib-report")

"""Checking a dataset: is it sound, and can it be benchmarked? Nothing of it is run or changed."""

from __future__ import annotations

from flashinfer_bench.validate.records import Finding, Severity
from flashinfer_bench.validate.run import (
    ValidationReport,
    known_checks,
    known_layers,
    validate_dataset,
)

__all__ = [
    "Finding",
    "Severity",
    "ValidationReport",
    "known_checks",
    "known_layers",
    "validate_dataset",
]

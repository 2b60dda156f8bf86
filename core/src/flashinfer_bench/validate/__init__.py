"""Checking a dataset: is it sound, and can it be benchmarked? Nothing of it is run or changed."""

from __future__ import annotations

from flashinfer_bench.validate.findings import Finding, Severity, ValidationReport
from flashinfer_bench.validate.layers import LAYERS
from flashinfer_bench.validate.run import CHECKS, validate_dataset

__all__ = ["CHECKS", "LAYERS", "Finding", "Severity", "ValidationReport", "validate_dataset"]

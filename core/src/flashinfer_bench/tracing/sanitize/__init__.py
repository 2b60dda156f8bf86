"""Taking workloads out of a dataset that no benchmark should run."""

from __future__ import annotations

from flashinfer_bench.tracing.sanitize.carry import Cleaned, sanitize
from flashinfer_bench.tracing.sanitize.findings import Finding, Limits, Reason

__all__ = ["Cleaned", "Finding", "Limits", "Reason", "sanitize"]

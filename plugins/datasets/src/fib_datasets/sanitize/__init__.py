"""Removal of useless workloads from a dataset."""

from __future__ import annotations

from fib_datasets.sanitize.carry import Cleaned, sanitize
from fib_datasets.sanitize.rules import Finding, Limits, Reason

__all__ = ["Cleaned", "Finding", "Limits", "Reason", "sanitize"]

"""Checking a dataset: is it sound, and can it be benchmarked? Nothing of it is run or changed."""

from __future__ import annotations

from fib_datasets.validate.findings import Finding as Finding
from fib_datasets.validate.findings import Severity as Severity
from fib_datasets.validate.run import ValidationReport as ValidationReport
from fib_datasets.validate.run import known_checks as known_checks
from fib_datasets.validate.run import known_layers as known_layers
from fib_datasets.validate.run import validate_dataset as validate_dataset

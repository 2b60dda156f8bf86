"""Checks of datasets, which run nothing and change nothing."""

from __future__ import annotations

from flashinfer_bench.validate.records import Finding as Finding
from flashinfer_bench.validate.records import Severity as Severity
from flashinfer_bench.validate.run import ValidationReport as ValidationReport
from flashinfer_bench.validate.run import known_checks as known_checks
from flashinfer_bench.validate.run import known_layers as known_layers
from flashinfer_bench.validate.run import validate_dataset as validate_dataset

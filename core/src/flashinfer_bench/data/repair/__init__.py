"""Finding what is damaged in a dataset, and taking it out of the way without losing it."""

from __future__ import annotations

from flashinfer_bench.data.repair.doctor import Diagnosis, Repair, examine, repair
from flashinfer_bench.data.repair.issues import Issue, Kind, Remedy

__all__ = ["Diagnosis", "Issue", "Kind", "Remedy", "Repair", "examine", "repair"]

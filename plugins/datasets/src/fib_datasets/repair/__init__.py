"""Finding what is damaged in a dataset, and taking it out of the way without losing it."""

from __future__ import annotations

from fib_datasets.repair.examine import Diagnosis, Issue, Kind, Remedy, examine
from fib_datasets.repair.mend import Repair, repair

__all__ = ["Diagnosis", "Issue", "Kind", "Remedy", "Repair", "examine", "repair"]

"""Finding damage in a dataset, and moving it to a backup."""

from __future__ import annotations

from fib_datasets.repair.examine import Diagnosis, Issue, Kind, Remedy, examine
from fib_datasets.repair.mend import Repair, repair

__all__ = ["Diagnosis", "Issue", "Kind", "Remedy", "Repair", "examine", "repair"]

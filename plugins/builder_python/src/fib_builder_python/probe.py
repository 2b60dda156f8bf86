"""Whether Python solutions can run here."""

from __future__ import annotations

from platform import python_version
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit import availability, require_torch

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability


def probe() -> Availability:
    """Return whether torch, which every solution works on, is installed; does not import it."""
    return availability(require_torch, lambda: f"Python {python_version()}")

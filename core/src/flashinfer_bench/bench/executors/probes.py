"""Whether an executor works on this system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flashinfer_bench.plugins import Availability


def fork() -> Availability:
    """Say whether processes can be forked and cleaned up as the fork server needs it."""
    if sys.platform != "linux":
        return Availability(False, f"needs Linux, this is {sys.platform}", "use executor 'spawn'")
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        reason = "this kernel does not list the children of a process"
        return Availability(False, reason, "use executor 'spawn'")
    return Availability(True)

"""What this machine can do at most: measured once, stored, and held against latencies.

`load_ceilings` is all that a run needs; it reads a small file and imports nothing heavy.
"""

from fib_judge.calibration.ceilings import Ceilings
from fib_judge.calibration.measure import calibrate
from fib_judge.calibration.store import (
    ceilings_path,
    list_ceilings,
    load_ceilings,
    store_ceilings,
)

__all__ = [
    "Ceilings",
    "calibrate",
    "ceilings_path",
    "list_ceilings",
    "load_ceilings",
    "store_ceilings",
]

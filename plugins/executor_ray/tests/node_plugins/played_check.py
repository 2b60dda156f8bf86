"""A plugin of nodes, on which the known kernel takes as long as a file says."""

import os
from pathlib import Path

from fib_executor_ray import fitness


def played(device: str) -> float:
    return float(Path(os.environ["FLEET_TEST_SECONDS"]).read_text())


fitness.time_known_kernel = played

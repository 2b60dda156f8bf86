"""Running the sample dataset by `fib run`, for the scripts beside this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SAMPLE = Path(__file__).resolve().parents[1] / "examples" / "sample-dataset"


class Run(NamedTuple):
    """What a run of a dataset has brought.

    Attributes
    ----------
    wall_s : float
        Wall time of the whole command, in seconds.
    traces : list of dict
        As they were stored.
    """

    wall_s: float
    traces: list[dict[str, Any]]

    def latencies(self) -> dict[tuple[str, str], float]:
        """Return the latency in milliseconds of what passed, by solution and workload."""
        found = {}
        for trace in self.traces:
            evaluation = trace["evaluation"]
            if evaluation["status"] == "PASSED":
                key = (trace["solution"], trace["workload"]["uuid"])
                found[key] = float(evaluation["performance"]["latency_ms"])
        return found


def run_dataset(dataset: Path, *options: str, cache: Path | None = None) -> Run:
    """Run all of a dataset in a copy of it.

    Parameters
    ----------
    dataset : Path
        The dataset; it is not changed.
    *options : str
        Of ``fib run``.
    cache : Path, optional
        ``FIB_CACHE_PATH``, so that a second run finds what the first one has built.
    """
    with tempfile.TemporaryDirectory(prefix="fib-sample-") as scratch:
        copy = Path(scratch) / "dataset"
        shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns("traces"))
        variables = {"FIB_CACHE_PATH": str(cache)} if cache is not None else {}
        command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(copy)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--log-level", "ERROR", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        wall_s = time.monotonic() - began
        if done.returncode not in (0, 4):  # 4: some solutions cannot be built here
            raise SystemExit(f"fib run failed with {done.returncode}:\n{done.stderr[-3000:]}")
        files = sorted(copy.glob("traces/**/*.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        return Run(wall_s, [json.loads(line) for line in lines])

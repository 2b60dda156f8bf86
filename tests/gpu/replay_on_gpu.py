"""Record traces on a CUDA device, look at what they say of it, and replay them.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/replay_on_gpu.py [--device cuda:0] [--definitions NAME ...]

It runs part of the sample dataset, prints what the traces record of driver, clocks, timer and
environment, how many bytes a trace takes without its log and samples, and what ``fib replay`` says
of each. Exit code 1 if a fact of the device is missing, or a replay is not reproducible.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import FIB, parser, run_sample, told, traces_of

FACTS = ("driver", "sm_clock_mhz", "memory_clock_mhz", "host", "timer", "device", "plugins")


def overhead(trace: dict[str, Any]) -> int:
    """Return how many bytes the provenance of a trace takes."""
    return len(json.dumps(trace["evaluation"]["provenance"], separators=(",", ":")))


def replayed(dataset: Path, cache: Path, device: str) -> Any:
    """Replay everything that passed; return the exit code and what was said."""
    command = [*FIB, "replay", "--local", str(dataset), "--json", "--device", device]
    environment = os.environ | {"FIB_CACHE_PATH": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return done.returncode, {"error": done.stderr[-2000:]}
    return done.returncode, json.loads(done.stdout)


def main() -> int:
    """Record, look, replay."""
    made = parser(__doc__)
    made.add_argument("--definitions", nargs="*", default=["rmsnorm_h512", "gemm_n256_k256"])
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dataset, cache = Path(scratch, "dataset"), Path(scratch, "cache")
        flags = [flag for name in options.definitions for flag in ("--definition", name)]
        run_sample(dataset, cache, options.device, *flags)
        traces = traces_of(dataset)
        passed = [trace for trace in traces if trace["evaluation"]["status"] == "PASSED"]
        code, said = replayed(dataset, cache, options.device)
    first = passed[0]["evaluation"]["provenance"] if passed else {}
    missing = [name for name in FACTS if not first.get(name)]
    replays = said.get("replays", said) if isinstance(said, dict) else said
    report = {
        "traces": len(traces),
        "passed": len(passed),
        "provenance": first,
        "missing": missing,
        "provenance_bytes": statistics.median(map(overhead, passed)) if passed else None,
        "replay_exit_code": code,
        "replay_verdicts": dict(Counter(one.get("verdict") for one in replays))
        if isinstance(replays, list)
        else said,
        "reasons": [one.get("reasons") for one in replays if one.get("reasons")][:10]
        if isinstance(replays, list)
        else [],
    }
    bad = isinstance(replays, list) and any("not" in str(one.get("verdict")) for one in replays)
    return told(report, missing or bad or not passed)


if __name__ == "__main__":
    raise SystemExit(main())

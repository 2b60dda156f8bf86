"""Run the sample dataset on a CUDA device, and check every verdict.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/run_sample_dataset.py [--device cuda:0] [--runners persistent isolated]

It prints one JSON object: the machine, wall times of the isolated and the persistent runner, what
an evaluation costs beyond the solution's own work, how many were timed by the host's clock, and the
verdicts that differ from ``examples/sources/expected.json``. Exit code 1 if any differs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from common import EXPECTED, ON_HOST, parser, require_gpu, sample_traces, told, wrong_verdicts

RUNNERS = {"persistent": (), "isolated": ("--use-isolated-runner",)}


def costs(traces: list[dict]) -> dict[str, float]:
    """Median build and evaluation wall time in milliseconds over the traces that passed."""
    passed = [t["evaluation"] for t in traces if t["evaluation"]["status"] == "PASSED"]
    wall = [e["provenance"]["wall_s"] * 1000 for e in passed]
    build = [e["provenance"]["build_s"] * 1000 for e in passed]
    return {"evaluation_wall_ms": statistics.median(wall), "build_ms": statistics.median(build)}


def main() -> int:
    """Run both runners and print the figures."""
    command = parser(__doc__)
    command.add_argument("--runners", nargs="+", choices=RUNNERS, default=list(RUNNERS))
    options = command.parse_args()
    device = options.device
    require_gpu()
    import torch

    names = [name for name, row in EXPECTED.items() if row["language"] != "cpp"]  # for the CPU
    report: dict = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
    wrong: list[str] = []
    for name in options.runners:
        with tempfile.TemporaryDirectory() as cache:
            seconds, traces = sample_traces(Path(cache), device, *RUNNERS[name])
        wrong += wrong_verdicts(traces, names)
        timers = {t["evaluation"].get("provenance", {}).get("timer") for t in traces}
        report[name] = {
            "evaluations": len(traces),
            "wall_s": round(seconds, 2),
            "wall_ms_per_evaluation": round(1000 * seconds / len(traces), 1),
            "timers": sorted(map(str, timers)),
            "timed_on_host": sum(ON_HOST in (t["evaluation"]["log"] or "") for t in traces),
            **{key: round(value, 2) for key, value in costs(traces).items()},
        }
    report["surprises"] = wrong
    return told(report, wrong)


if __name__ == "__main__":
    sys.exit(main())

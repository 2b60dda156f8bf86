"""Run the sample dataset on one GPU, on all of them, and on all of them through Ray.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/several_gpus.py [--ways one all ray] [--save FOLDER]

With ``--save`` the traces of each way are kept, and those of an earlier call are counted as well.
It prints one JSON object: the seconds, how many times as fast each way is as one GPU, how far the
latencies are from those of one GPU, and on which devices they were taken. Exit code 1 if a verdict
is wrong, 4 without a device.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from common import EXPECTED, parser, require_gpu, run_sample, told, traces_of, wrong_verdicts

FLAGS = {"one": ("cuda:0",), "all": ("cuda",), "ray": ("cuda", "--executor", "ray")}
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def latencies(traces: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the latencies that are not disputed, in milliseconds."""
    return {
        (one["solution"], one["workload"]["uuid"]): one["evaluation"]["performance"]["latency_ms"]
        for one in traces
        if one["evaluation"]["status"] == "PASSED"
        and "disputed" not in one["evaluation"]["correctness"]["extra"]["integrity"]
    }


def take(way: str, folder: Path) -> None:
    """Run it in one way, and keep the traces and the seconds in a folder."""
    device, *flags = FLAGS[way]
    if way == "ray":
        subprocess.run([*RAY, "start", "--head", "--include-dashboard=false"], check=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            seconds = run_sample(Path(scratch, "set"), Path(scratch, "cache"), device, *flags)
            shutil.copytree(Path(scratch, "set", "traces"), folder / "traces")
            (folder / "seconds").write_text(str(seconds))
    finally:
        if way == "ray":
            subprocess.run([*RAY, "stop"], check=False)


def main() -> int:
    """Run the ways, and print the figures."""
    command = parser(__doc__)
    command.add_argument("--ways", nargs="+", choices=FLAGS, default=list(FLAGS))
    command.add_argument("--save", type=Path)
    options = command.parse_args()
    require_gpu()
    names = [name for name, row in EXPECTED.items() if row["language"] != "cpp"]
    report, wrong = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        save = options.save or Path(scratch)
        for way in options.ways:
            shutil.rmtree(save / way, ignore_errors=True)
            take(way, save / way)
        one: dict[tuple[str, str], float] = {}
        for way in FLAGS:
            if not (save / way).exists():
                continue
            traces = traces_of(save / way)
            wrong += [f"{way}: {text}" for text in wrong_verdicts(traces, names)]
            seconds, found = float((save / way / "seconds").read_text()), latencies(traces)
            told_of = [each["evaluation"]["provenance"]["extra"] for each in traces]
            row: dict[str, Any] = {"wall_s": round(seconds, 1), "evaluations": len(traces)}
            row["devices"] = Counter(each.get("node_device", "here") for each in told_of)
            if one:
                ratios = sorted(found[key] / one[key] for key in one.keys() & found.keys())
                row["faster"] = round(float((save / "one" / "seconds").read_text()) / seconds, 3)
                row["latency_ratio"] = [round(each, 4) for each in quantiles(ratios, n=4)]
                row["off"] = round(median(abs(each - 1) for each in ratios), 4)
                row["within_1_percent"] = f"{sum(abs(r - 1) <= 0.01 for r in ratios)}/{len(ratios)}"
            elif way == "one":
                one = found
            report[way] = row
    return told({"ways": report, "wrong": wrong}, wrong)


if __name__ == "__main__":
    sys.exit(main())

"""Measure what distrust costs: honest solutions, evaluated in turn with ``trust`` full and off.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/trust_costs.py [--device cuda:0] [--rounds 3]

It prints one JSON object: for each solution the medians of the latencies and of the seconds that an
evaluation took, how much they differ, and the medians of these differences. Exit code 1 if any
evaluation did not pass, 4 without a device.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common import ROOT, parser, require_gpu, told

sys.path.insert(0, str(ROOT))

from tests.exploits.corpus import Entry, read_corpus
from tests.exploits.evaluate import Bench, Settings, write_dataset

if TYPE_CHECKING:
    import argparse

#: From 3 µs to 5 ms a call on a large GPU; in torch, CUDA and Triton.
SOLUTIONS = {
    "cuda": (
        *("scaled_add_py", "scaled_add_cu", "scaled_add_triton"),
        *("rmsnorm_py", "rmsnorm_cu", "rmsnorm_triton", "softmax_triton", "silu_mul_cu"),
        *("matmul_py", "matmul_cu", "moe_py"),
    ),
    "cpu": ("scaled_add_py", "scaled_add_cpp", "rmsnorm_py", "rmsnorm_cpp", "matmul_cpp"),
}
MODES = ("full", "off")
Row = dict[str, Any]


def measure(benches: dict[str, Bench], entry: Entry, rounds: int) -> dict[str, list[float]]:
    """Evaluate one solution in turn; return seconds by mode, and note what failed."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for mode in MODES:  # builds, and starts the servers
        benches[mode].run([entry])
    for mode in MODES:
        benches[mode].outcomes[entry.name].clear()
    for number in range(rounds):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            began = time.perf_counter()
            benches[mode].run([entry])
            seconds[mode].append(time.perf_counter() - began)
    return seconds


def row_of(benches: dict[str, Bench], entry: Entry, seconds: dict[str, list[float]]) -> Row:
    """Sum up what was measured of one solution."""
    outcomes = {mode: benches[mode].outcomes[entry.name] for mode in MODES}
    failed = [f"{m}: {o.status} {o.rule}" for m in MODES for o in outcomes[m] if not o.passed]
    row: Row = {"language": entry.language, "failed": failed}
    latency = {mode: benches[mode].latency_ms(entry.name) for mode in MODES}
    for mode in MODES:
        row[f"seconds_{mode}"] = round(median(seconds[mode]), 2)
        row[f"latency_ms_{mode}"] = latency[mode]
    row["wall_ratio"] = round(median(seconds["full"]) / median(seconds["off"]), 3)
    if latency["full"] and latency["off"]:
        row["latency_difference_percent"] = round(100 * (latency["full"] / latency["off"] - 1), 2)
    return row


def run(options: argparse.Namespace) -> dict[str, Row]:
    """Measure all solutions for the kind of device."""
    kind = options.device.partition(":")[0]
    wanted = options.only or SOLUTIONS[kind]
    known = {entry.name: entry for entry in read_corpus() if kind in entry.devices}
    entries = [known[name] for name in wanted if name in known]
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="trust-") as scratch:
        os.environ["FIB_CACHE_PATH"] = str(Path(scratch) / "cache")
        write_dataset(Path(scratch) / "dataset", entries, kind)
        settings = {
            mode: Settings(options.device, trust=mode, warmup=10, iterations=50, trials=3)
            for mode in MODES
        }
        benches = {mode: Bench(Path(scratch) / "dataset", settings[mode]) for mode in MODES}
        with benches["full"], benches["off"]:
            for entry in entries:
                rows[entry.name] = row_of(benches, entry, measure(benches, entry, options.rounds))
                print(entry.name, json.dumps(rows[entry.name]), file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--only", nargs="+", metavar="NAME")
    options = made.parse_args()
    if options.device != "cpu":
        require_gpu()
    rows = run(options)
    ratios = [row["wall_ratio"] for row in rows.values()]
    differences = [d for row in rows.values() if (d := row.get("latency_difference_percent"))]
    report = {
        "device": options.device,
        "rounds": options.rounds,
        "median_wall_ratio": round(median(ratios), 3),
        "median_latency_difference_percent": round(median(differences), 2) if differences else None,
        "solutions": rows,
    }
    return told(report, any(row["failed"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())

"""Measure what one more evaluation costs in a process that is warm, and where the time goes.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/evaluation_costs.py [--device cuda:0] [--only NAME ...] [--profile]

It prints one JSON object: for each honest solution of the corpus the seconds that preparing the
workload took, the first evaluation, and the median of the later ones; with ``--profile`` then the
functions of the judge's process by time, of half of the later ones, which do not count. Exit code 1
if any evaluation did not pass, 4 without a device.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from common import ROOT, parser, require_gpu, told

sys.path.insert(0, str(ROOT))

from tests.exploits.corpus import read_corpus
from tests.exploits.evaluate import write_dataset

from flashinfer_bench.bench import BenchmarkConfig, PersistentRunner
from flashinfer_bench.data import TraceSet

if TYPE_CHECKING:
    from flashinfer_bench.data import Evaluation, Solution

SOLUTIONS = ("scaled_add_triton", "scaled_add_py", "rmsnorm_triton", "softmax_py", "matmul_py")
TIMES = 6


def measure(
    runner: PersistentRunner, data: TraceSet, name: str, profile: Optional[cProfile.Profile]
) -> tuple[dict[str, Any], bool]:
    """Evaluate one solution again and again on one workload; the later times are profiled."""
    own = next(one for group in data.solutions.values() for one in group if one.name == name)
    definition = data.definitions[own.definition]
    workload = data.workloads[own.definition][0].workload
    config = BenchmarkConfig.default(device=runner.device, tolerance="dtype")
    ended: list[tuple[float, Evaluation]] = []
    began: list[float] = []

    def start(solution: Solution) -> None:
        began.append(time.perf_counter())
        if profile is not None and len(began) == TIMES // 2 + 2:
            profile.enable()

    asked = time.perf_counter()
    repeated = [own] * (TIMES + 1)
    for _, found in runner.evaluate_each(
        definition, workload, repeated, config, data.root, on_start=start
    ):
        ended.append((time.perf_counter() - began[-1], found))
    if profile is not None:
        profile.disable()
    seconds = [took for took, _ in ended][: TIMES // 2 + 1 if profile else None]
    speed = ended[-1][1].performance
    row = {
        "prepared_s": round(began[0] - asked, 2),
        "first_s": round(seconds[0], 2),
        "later_s": round(median(seconds[1:]), 3),
        "spread_s": [round(min(seconds[1:]), 3), round(max(seconds[1:]), 3)],
        "latency_ms": speed.latency_ms if speed else None,
    }
    return row, all(found.status.value == "PASSED" for _, found in ended)


def main() -> int:
    """Evaluate all, and print the figures."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", metavar="NAME", default=SOLUTIONS)
    made.add_argument("--profile", action="store_true")
    options = made.parse_args()
    if options.device != "cpu":
        require_gpu()
    kind = options.device.partition(":")[0]
    entries = [entry for entry in read_corpus() if entry.name in options.only]
    rows, wrong = {}, []
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder, PersistentRunner(options.device) as runner:
        write_dataset(Path(folder), entries, kind)
        data = TraceSet.from_path(folder)
        for entry in entries:
            if kind in entry.devices:
                given = profile if options.profile else None
                rows[entry.name], passed = measure(runner, data, entry.name, given)
                wrong += [] if passed else [entry.name]
    code = told({"device": options.device, "solutions": rows, "wrong": wrong}, wrong)
    if options.profile:
        for order in ("cumulative", "tottime"):
            pstats.Stats(profile).sort_stats(order).print_stats(90)
    return code


if __name__ == "__main__":
    sys.exit(main())

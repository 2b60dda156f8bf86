"""Compare solutions of the exploit corpus on a GPU: copies, and those that claim too little.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/compare_on_gpu.py [--device cuda:0] [--seconds 20] [--only NAME ...]

Each honest solution is compared with itself: it must not be told apart, and none of its launches is
to be discarded. Each exploit is compared with its control: it must not be found faster. It prints
one JSON object. Exit code 1 if that is not so, 4 without a device.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from common import ROOT, parser, require_gpu, told

sys.path.insert(0, str(ROOT))

from tests.exploits.corpus import control_of, read_corpus
from tests.exploits.evaluate import write_dataset

from fib_compare.paired.comparer import Comparer, CompareSettings, find_contests
from fib_compare.stats import Verdict
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.data import TraceSet

HONEST = ("scaled_add_triton", "scaled_add_py", "rmsnorm_triton", "matmul_py", "softmax_py")
EXPLOITS = (
    "claims_three_quarters",
    "impossible_fifth_less",
    "gpu_done_early",
    "gpu_waits_and_claims_half",
    "gpu_round_overlapped",
)


def main() -> int:
    """Make all comparisons, and print the figures."""
    made = parser(__doc__)
    made.add_argument("--seconds", type=float, default=20.0, help="for each comparison")
    made.add_argument("--only", nargs="+", metavar="NAME", default=(*HONEST, *EXPLOITS))
    options = made.parse_args()
    if options.device != "cpu":
        require_gpu()
    kind = options.device.partition(":")[0]
    corpus = read_corpus()
    rows, wrong = {}, []
    settings = CompareSettings(max_seconds=options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder), corpus, kind)
        data = TraceSet.from_path(folder)
        config = BenchmarkConfig.default(device=options.device, tolerance="dtype")
        with Comparer(data, config, settings) as comparer:
            for entry in corpus:
                if entry.name not in options.only or kind not in entry.devices:
                    continue
                honest = entry.kind == "honest"
                control = entry if honest else control_of(entry, corpus, kind)
                if control is None:
                    continue
                for found in comparer.run(find_contests(data, control.name, entry.name)[:1]):
                    result = found.comparison
                    verdict = None if result is None else result.verdict
                    bad = {Verdict.FASTER, Verdict.SLOWER} if honest else {Verdict.FASTER}
                    discarded = [note for note in found.notes if "discarded" in note]
                    if verdict in bad or (honest and (result is None or discarded)):
                        wrong.append(entry.name)
                    rows[entry.name] = {
                        "against": control.name,
                        "verdict": verdict and verdict.value,
                        "ratio": result and round(result.ratio.estimate, 4),
                        "interval": result
                        and [round(result.ratio.low, 4), round(result.ratio.high, 4)],
                        "launches": len(found.launches),
                        "baseline_ms": found.baseline_ms if result else None,
                        "obstacle": found.obstacle and str(found.obstacle),
                        "notes": list(found.notes),
                        "seconds": round(found.seconds, 1),
                    }
                    print(entry.name, rows[entry.name], file=sys.stderr, flush=True)
    return told({"device": options.device, "solutions": rows, "wrong": wrong}, wrong)


if __name__ == "__main__":
    sys.exit(main())

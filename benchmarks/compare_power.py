"""What ``fib compare`` finds, and what it imagines: ``python compare_power.py --count 100``.

Compares, again and again, a function of about 5 ms with itself (A/A), and with the same function
that does 5 % and 10 % more of the same work, each time with a fresh ``fib compare``. Prints how
often each verdict came, with 95 % Clopper-Pearson intervals [1]_, and the median seconds; beside
it what the usual rule says on the same samples: the mean of three medians of 50 calls, and
whichever is less wins.

Every result is appended to a file of JSON lines at once. A run that is broken off goes on from
there; ``--report`` prints what is there and compares nothing. On a machine that others use, wait
until it is quiet: with the load goes the time that a comparison takes.

References
----------
.. [1] C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the
   case of the binomial", Biometrika 26 (1934), 404-413.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

ELEMENTS = 32768
"""As many as torch works on in one thread."""

MORE = {"same": 0.0, "five": 0.05, "ten": 0.10}
"""What each candidate does beyond the baseline."""

_WORK = "torch.addcmul({0}, x, x, value=0.001)"
_TRIALS, _ITERATIONS = 3, 50
_SIDES = ("baseline", "candidate")


def source(steps: int, extra: int) -> str:
    """Return a function of `steps` operations, and `extra` more whose results are not used."""
    return (
        "import torch\n\n\ndef run(x):\n    y = x\n"
        f"    for _ in range({steps}):\n        y = {_WORK.format('y')}\n"
        f"    for _ in range({extra}):\n        {_WORK.format('x')}\n    return y\n"
    )


def calibrate(milliseconds: float) -> int:
    """Return how many operations take so long here; a multiple of 20, so that 5 % is exact."""
    import torch

    torch.set_num_threads(1)
    x = torch.randn(ELEMENTS)
    taken = []
    for _ in range(30):
        began = time.perf_counter()
        y = x
        for _ in range(100):
            y = torch.addcmul(y, x, x, value=0.001)
        taken.append(time.perf_counter() - began)
    steps = milliseconds * 1e-3 / (median(taken) / 100)
    return max(20, round(steps / 20) * 20)


def write_dataset(root: Path, steps: int) -> None:
    """Write a definition, a workload, and a solution for each of `MORE`, and the baseline."""
    definition = {
        "name": "chain",
        "op_type": "elementwise",
        "axes": {"n": {"type": "const", "value": ELEMENTS}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
        "reference": source(steps, 0),
    }
    _write(root / "definitions/elementwise/chain.json", definition)
    workload = {"uuid": "chain-1", "axes": {}, "inputs": {"x": {"type": "random"}}}
    line = {"definition": "chain", "workload": workload, "solution": None, "evaluation": None}
    _write(root / "workloads/elementwise/chain.jsonl", line)
    for name, share in {"baseline": 0.0, **MORE}.items():
        solution = {
            "name": name,
            "definition": "chain",
            "author": "power",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
            },
            "sources": [{"path": "main.py", "content": source(steps, round(steps * share))}],
        }
        _write(root / f"solutions/power/elementwise/chain/{name}.json", solution)


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def compare(root: Path, candidate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compare once, and return what goes into the file."""
    command = [sys.executable, "-m", "flashinfer_bench", "compare", "--local", str(root)]
    command += ["--baseline", "baseline", "--candidate", candidate, "--device", "cpu", "--json"]
    command += ["--max-seconds", str(options.max_seconds), "--trust", options.trust]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if not done.stdout:
        raise SystemExit(f"fib compare failed ({done.returncode}): {done.stderr}")
    found = json.loads(done.stdout)["comparisons"][0]
    kept = {name: found.get(name) for name in ("verdict", "ratio", "low", "high", "p_value")}
    return {
        "candidate": candidate,
        "exit_code": done.returncode,
        "seconds": round(seconds, 2),
        **kept,
        "stopped": found["stopped"],
        "obstacle": found["obstacle"],
        "notes": found["notes"],
        "load": os.getloadavg()[0],
        "launches": [
            {
                **{side: [float(f"{ms:.6g}") for ms in launch[side]] for side in _SIDES},
                "candidate_first": launch["candidate_first"],
            }
            for launch in found["launches"]
        ],
    }


def usual_rule(record: dict[str, Any], threshold: float = 0.0) -> str:
    """Return what the mean of three medians of 50 calls says.

    Its calls come from the interleaved launches. That is better than what it has in practice, where
    all calls of one solution come before those of the other.
    """
    latencies = []
    for side in _SIDES:
        samples = [ms for launch in record["launches"] for ms in launch[side]]
        size = min(_ITERATIONS, len(samples) // _TRIALS)
        if not size:
            return "none"
        parts = [samples[size * i : size * (i + 1)] for i in range(_TRIALS)]
        latencies.append(mean(median(part) for part in parts))
    ratio = latencies[1] / latencies[0]
    if ratio > 1 + threshold:
        return "slower"
    return "faster" if ratio < 1 - threshold else "same"


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share."""
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else _root(lambda p: 1 - _below(count - 1, total, p) - tail)
    high = 1.0 if count == total else _root(lambda p: tail - _below(count, total, p))
    return low, high


def _below(count: int, total: int, share: float) -> float:
    """Return the chance of at most `count` successes."""
    return math.fsum(
        math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count + 1)
    )


def _root(rising: Any) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each candidate."""
    rows = []
    for name, share in MORE.items():
        found = [one for one in records if one["candidate"] == name]
        if not found:
            continue
        # Of the same solution twice every difference is a false alarm.
        wanted = ("slower",) if share else ("slower", "faster")
        verdicts = [one["verdict"] or "not compared" for one in found]
        usual = [[usual_rule(one, least) for one in found] for least in (0.0, 0.01)]
        rows.append(
            {
                "slower_by_percent": 100 * share,
                "wanted": "none of these" if not share else "all of these",
                "verdicts_that_count": wanted,
                "compare": rate(verdicts, wanted),
                "all_verdicts": {one: verdicts.count(one) for one in sorted({*verdicts})},
                "median_seconds": median(one["seconds"] for one in found),
                "most_seconds": max(one["seconds"] for one in found),
                "median_launches": median(len(one["launches"]) for one in found),
                "median_load": median(one["load"] for one in found),
                "usual_rule": rate(usual[0], wanted),
                "usual_rule_with_1_percent": rate(usual[1], wanted),
            }
        )
    return rows


def rate(verdicts: list[str], wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return how many of the verdicts are among `wanted`, and the interval of their share."""
    count, total = sum(one in wanted for one in verdicts), len(verdicts)
    interval = [round(100 * end, 1) for end in clopper_pearson(count, total)]
    return {"count": count, "of": total, "percent": 100 * count / total, "interval": interval}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results of a file, or none; a last line that was cut off is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def run(options: argparse.Namespace) -> None:
    """Compare until there are enough results of each candidate; their order is random."""
    steps = next((one["steps"] for one in read(options.results) if "steps" in one), None)
    steps = steps or calibrate(options.milliseconds)
    with tempfile.TemporaryDirectory(prefix="fib-power-") as scratch:
        root = Path(scratch) / "dataset"
        write_dataset(root, steps)
        counts = dict.fromkeys(options.cases, 0)
        for one in read(options.results):
            if one["candidate"] in counts:
                counts[one["candidate"]] += 1
        left = [name for name in counts for _ in range(options.count - counts[name])]
        random.shuffle(left)
        for number, name in enumerate(left, 1):
            record = {**compare(root, name, options), "steps": steps}
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            told = f"{name}: {record['verdict']} {record['ratio']} in {record['seconds']} s"
            print(f"[{number}/{len(left)}] {told}", file=sys.stderr, flush=True)


def main() -> None:
    """Run, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="comparisons of each case")
    parser.add_argument("--cases", nargs="+", choices=MORE, default=list(MORE))
    parser.add_argument("--results", type=Path, default=Path("compare_power.jsonl"))
    parser.add_argument("--milliseconds", type=float, default=5.0)
    parser.add_argument("--max-seconds", type=float, default=30.0)
    parser.add_argument("--trust", choices=("full", "off"), default="full")
    parser.add_argument("--report", action="store_true", help="print what is there, and end")
    options = parser.parse_args()
    if not options.report:
        run(options)
    print(json.dumps(summary(read(options.results)), indent=2))


if __name__ == "__main__":
    main()

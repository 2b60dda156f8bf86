"""Kill writers with ``kill -9`` at random points, and look at what is left.

``python tests/durability/kill_points.py`` kills an appending process and a real ``fib run`` at 200
points each, and ends with 1 if a committed trace is lost, a dataset does not load, or ``--resume``
does not finish the rest. The tests of this folder do the same at fewer points.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fib_tests import forked
from flashinfer_bench.data import TraceSet

DEFINITION = "double"
SOLUTIONS = ("baseline", "alice", "bob")
WORKLOADS = 4
RUN = (
    *(sys.executable, "-m", "flashinfer_bench", "run", "--resume", "--device", "cpu"),
    *("--iterations", "2", "--warmup-runs", "0", "--num-trials", "1", "--local"),
)
APPEND = """
import sys
from flashinfer_bench.data import TraceSet

trace_set = TraceSet.from_path(sys.argv[1])
(template,) = trace_set.workloads["double"][:1]
for number in range(10**9):
    name = f"{sys.argv[2]}-{number}"
    log = "x" * (1000 if number % 3 else 200_000)
    record = {
        "definition": "double",
        "solution": "alice",
        "workload": {**template.workload.model_dump(), "uuid": name},
        "evaluation": {
            "status": "RUNTIME_ERROR",
            "environment": {"hardware": "none"},
            "timestamp": "2026-01-01T00:00:00",
            "log": log,
        },
    }
    from flashinfer_bench.data import Trace

    trace_set.add_traces([Trace.model_validate(record)])
    print(name, flush=True)
"""


@dataclass
class Tally:
    """What came of some kills; `problems` are what must not happen."""

    points: int
    committed: int
    torn: int
    finished: int
    problems: list[str]


def write_dataset(root: Path) -> Path:
    """Write a definition, its solutions and its workloads."""

    def write(path: str, *records: dict[str, Any]) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    tensor = {"shape": ["N"], "dtype": "float32"}
    definition = {
        "name": DEFINITION,
        "op_type": "op",
        "axes": {"N": {"type": "var"}},
        "inputs": {"x": tensor},
        "outputs": {"y": tensor},
        "reference": "def run(x):\n    return x * 2\n",
    }
    write(f"definitions/op/{DEFINITION}.json", definition)
    for name in SOLUTIONS:
        spec = {
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        }
        source = {"path": "main.py", "content": "def run(x):\n    return x + x\n"}
        solution = {"name": name, "definition": DEFINITION, "author": name, "spec": spec}
        write(f"solutions/{name}/{name}.json", {**solution, "sources": [source]})
    workloads = [
        {"axes": {"N": 8 * (1 + index)}, "inputs": {"x": {"type": "random"}}, "uuid": f"w{index}"}
        for index in range(WORKLOADS)
    ]
    records = ({"definition": DEFINITION, "workload": workload} for workload in workloads)
    write(f"workloads/op/{DEFINITION}.jsonl", *records)
    return root


def trace_file(root: Path) -> Path:
    """Return the file that all traces go to."""
    return root / "traces" / "op" / f"{DEFINITION}.jsonl"


def whole_lines(root: Path) -> bytes:
    """Return what is in the file of traces, up to the last line end."""
    file = trace_file(root)
    text = file.read_bytes() if file.exists() else b""
    return text[: text.rfind(b"\n") + 1]


def kill_appends(folder: Path, points: int, seed: int = 0, longest_s: float = 0.2) -> Tally:
    """Kill a process that appends traces, again and again on the same dataset."""
    rng, root = random.Random(seed), write_dataset(folder / "appended")
    reported: list[str] = []
    problems: list[str] = []
    torn = 0
    for point in range(points):
        command = [sys.executable, "-c", APPEND, str(root), str(point)]
        with forked.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            reported.append(writer.stdout.readline().strip())
            time.sleep(rng.uniform(0, longest_s))
            writer.kill()
            rest = writer.stdout.read()
        reported += [line.strip() for line in rest.splitlines(keepends=True) if line[-1:] == "\n"]
        torn += trace_file(root).read_bytes()[-1:] != b"\n"
        if point % 10 == 9 or point == points - 1:
            problems += check_appended(root, reported)
    return Tally(points, len(reported), torn, 0, problems)


def check_appended(root: Path, reported: list[str]) -> list[str]:
    """Say what of the traces that a writer has reported is wrong in a dataset."""
    try:
        found = [one.workload.uuid for one in TraceSet.from_path(root).traces[DEFINITION]]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        return [f"the dataset does not load: {error}"]
    lost = set(reported) - set(found)
    twice = len(found) - len(set(found))
    return [f"{len(lost)} traces lost, {twice} twice"] if lost or twice else []


def environment() -> dict[str, str]:
    """Have no latency disputed, whatever else this machine does: it would be measured again."""
    return {**os.environ, "FIB_DISABLE_PLUGINS": "judge"}


def kill_runs(folder: Path, points: int, seed: int = 0) -> Tally:
    """Kill ``fib run --resume`` at random moments until it is done, dataset after dataset."""
    rng, tally = random.Random(seed), Tally(0, 0, 0, 0, [])
    begin = time.monotonic()
    forked.run([*RUN, write_dataset(folder / "first")], env=environment(), check=True)
    duration = time.monotonic() - begin
    while tally.points < points:
        root = write_dataset(folder / f"run-{tally.points}")
        while tally.points < points and not _kill_one(root, rng.uniform(0, duration), tally):
            pass
        _finish(root, tally)
    return tally


def _kill_one(root: Path, after_s: float, tally: Tally) -> bool:
    """Kill one run after some time; return whether it had ended before."""
    command = [*RUN, str(root)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with forked.Popen(command, env=environment(), **quiet) as process:
        with_timeout = time.monotonic() + after_s
        while time.monotonic() < with_timeout and process.poll() is None:
            time.sleep(0.002)
        seen = whole_lines(root)
        ended = process.poll() is not None
        os.kill(process.pid, signal.SIGKILL) if not ended else None
    tally.points += not ended
    left = trace_file(root).read_bytes() if trace_file(root).exists() else b""
    tally.torn += not left.endswith(b"\n") and left != b""
    if not left.startswith(seen):
        tally.problems.append(f"{root}: what had been written was changed by a kill")
    try:
        TraceSet.from_path(root).traces  # noqa: B018 - reads them
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        tally.problems.append(f"{root}: it does not load after a kill: {error}")
    return ended


def _finish(root: Path, tally: Tally) -> None:
    before = whole_lines(root)
    done = forked.run([*RUN, root], env=environment())
    traces = TraceSet.from_path(root).traces.get(DEFINITION, [])
    pairs = sorted((one.solution or "", one.workload.uuid) for one in traces)
    wanted = sorted((name, f"w{index}") for name in SOLUTIONS for index in range(WORKLOADS))
    if done.returncode != 0 or pairs != wanted or not whole_lines(root).startswith(before):
        tally.problems.append(f"{root}: --resume ended with {done.returncode}, left {pairs}")
    tally.committed += len(pairs)
    tally.finished += 1


def main() -> int:
    """Run both, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("append", "run"))
    options = parser.parse_args()
    bad = False
    for name, kill in (("append", kill_appends), ("run", kill_runs)):
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            tally = kill(Path(folder), options.points, options.seed)
        bad = bad or bool(tally.problems)
        print(f"{name}: {tally}", flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

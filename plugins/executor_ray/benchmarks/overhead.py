"""What a fleet costs: 1,000 small evaluations on this machine, without and with Ray.

``python overhead.py [EVALUATIONS]`` prints JSON. All nodes of the cluster share the cores of this
machine, so three of them are not three times as fast as one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from small_cluster import command, keys_of, make_dataset, small_cluster

SOLUTIONS = 20


def timed(arguments: list[str]) -> dict[str, float]:
    """Run ``fib run``; return the seconds of it all, of the evaluations, and of its processor."""
    began = time.monotonic()
    first = last = 0.0
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(rb"\[\d+/\d+\]", line):
            last = time.monotonic()
            first = first or last
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed")
    return {
        "seconds": time.monotonic() - began,
        "evaluating_s": last - first,
        "cpu_s_of_fib": used.ru_utime + used.ru_stime,
    }


def main() -> None:
    """Measure in both orders, since a shared machine changes meanwhile, and print JSON."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    order = [0, 1, 3, 3, 1, 0]  # nodes; none is a local run
    found: dict[int, list[dict[str, float]]] = {nodes: [] for nodes in order}
    with tempfile.TemporaryDirectory() as folder:
        for number, nodes in enumerate(order):
            path = Path(folder) / str(number)
            count = make_dataset(path, workloads=wanted // SOLUTIONS, solutions=SOLUTIONS)
            with small_cluster(nodes) if nodes else nullcontext() as cluster:
                found[nodes].append(
                    timed(command(path, address=cluster.address if cluster else ""))
                )
            assert len(set(keys_of(path))) == len(keys_of(path)) == count
    means = {
        nodes: {key: (one[key] + two[key]) / 2 for key in one}
        for nodes, (one, two) in found.items()
    }
    told = {
        "evaluations": count,
        "runs": {f"{nodes} nodes" if nodes else "local": runs for nodes, runs in found.items()},
        "overhead_ms_per_evaluation": {
            f"{nodes} nodes": {
                key: 1e3 * (means[nodes][key] - means[0][key]) / count
                for key in ("seconds", "evaluating_s")
            }
            for nodes in (1, 3)
        },
    }
    rounded = json.loads(json.dumps(told), parse_float=lambda text: round(float(text), 2))
    print(json.dumps(rounded, indent=2))


if __name__ == "__main__":
    main()

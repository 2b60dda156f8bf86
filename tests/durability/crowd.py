"""Several processes append to one dataset: ``python tests/durability/crowd.py``.

Ends with 1 if any of their traces is lost, torn, doubled or out of order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_points import DEFINITION, trace_file, write_dataset

WRITER = """
import sys
from flashinfer_bench.data import Trace, TraceSet

trace_set = TraceSet.from_path(sys.argv[1])
workload = trace_set.workloads["double"][0].workload.model_dump()
evaluation = {
    "status": "RUNTIME_ERROR",
    "environment": {"hardware": "none"},
    "timestamp": "2026-01-01T00:00:00",
    "log": "x" * 1000,
}
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    record = {
        "definition": "double",
        "solution": "alice",
        "workload": {**workload, "uuid": f"{sys.argv[2]}-{number}"},
        "evaluation": evaluation,
    }
    trace_set.add_traces([Trace.model_validate(record)])
"""


def append_all(root: Path, writers: int, appends: int) -> list[str]:
    """Let all of them append at once; return what is wrong afterwards."""
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(name), str(appends)],
            stdin=subprocess.PIPE,
        )
        for name in range(writers)
    ]
    for process in crowd:  # all are ready before any begins
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    codes = [process.wait() for process in crowd]
    problems = [f"writer {name} ended with {code}" for name, code in enumerate(codes) if code]
    text = trace_file(root).read_bytes()
    uuids = [json.loads(line)["workload"]["uuid"] for line in text.splitlines()]
    for name in range(writers):
        mine = [uuid for uuid in uuids if uuid.startswith(f"{name}-")]
        if mine != [f"{name}-{number}" for number in range(appends)]:
            problems.append(f"of writer {name} there are {len(set(mine))} in {len(mine)} lines")
    if not text.endswith(b"\n") or len(uuids) != writers * appends:
        problems.append(f"{len(uuids)} lines in {DEFINITION}, or a torn one")
    return problems


def main() -> int:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--appends", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        problems = append_all(write_dataset(Path(folder)), options.writers, options.appends)
        seconds = time.monotonic() - begin
    total = options.writers * options.appends
    print(f"{total} appends in {seconds:.1f} s; problems: {problems or 'none'}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

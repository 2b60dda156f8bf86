"""Judge CUDA and Triton solutions through a service, and see whether its readers disturb it.

Start it in an environment where core and the plugins are installed (or on ``PYTHONPATH``)::

    python tests/gpu/service_on_gpu.py [--device cuda:0] [--pairs 12] [--only NAME ...]

It serves a copy of the sample dataset, submits its CUDA and Triton solutions, and compares every
verdict with ``examples/sources/expected.json``. Then it has one solution evaluated again and again,
in turn without readers and with 200 reads of the leaderboard a second. It prints one JSON object.
Exit code 1 if any verdict differs, 4 without a device.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common import EXPECTED, FIB, ROOT, SAMPLE, parser, require_gpu, told

from fib_serve.client import Client
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 200
LANGUAGES = {"cuda": ("cuda", "triton"), "cpu": ("cpp",)}
REPEATED = {"cuda": "erin_rmsnorm_triton", "cpu": "frank_rmsnorm_cpp"}
_READY_S = 120.0


@contextmanager
def service(dataset: Path, device: str) -> Iterator[Client]:
    """Serve a dataset; yield a client once all workers are ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = (
        "--devices",
        device,
        "--port",
        str(port),
        "--requests-per-minute",
        "1000000",
        "--log-level",
        "WARNING",
    )
    process = subprocess.Popen([*FIB, "serve", "--local", str(dataset), *flags])
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            until = time.monotonic() + _READY_S
            while not is_ready(client):
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit("the service did not become ready")
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def is_ready(client: Client) -> bool:
    """Return whether all workers are."""
    try:
        return client.health()["status"] == "ok"
    except FibError:
        return False


def judge_all(client: Client, dataset: Path, only: list[str], report: dict[str, Any]) -> list[str]:
    """Submit solutions for the device; return the verdicts that are not as expected."""
    kind = report["device"].partition(":")[0]
    data = TraceSet.from_path(dataset)
    solutions = [
        one
        for group in data.solutions.values()
        for one in group
        if EXPECTED[one.name]["language"] in LANGUAGES[kind] and (not only or one.name in only)
    ]
    began = time.monotonic()
    tasks = {one.name: client.submit(one).task_id for one in solutions}
    wrong, statuses = [], Counter[str]()
    for name, task in tasks.items():
        view = client.wait(task)
        got = {t["workload"]["uuid"]: t["evaluation"]["status"] for t in view.traces}
        statuses.update(got.values())
        for uuid, status in EXPECTED[name]["status"].items():
            if got.get(uuid) != status:
                wrong.append(f"{name}: {got.get(uuid, view.error)}, expected {status}")
    report["submitted"] = {
        "solutions": len(tasks),
        "statuses": dict(statuses),
        "seconds": round(time.monotonic() - began, 1),
    }
    return wrong


def compare_with_readers(client: Client, dataset: Path, name: str, pairs: int) -> dict[str, Any]:
    """Return latencies and times of one evaluation without readers and with them."""
    data = TraceSet.from_path(dataset)
    (own,) = [s for group in data.solutions.values() for s in group if s.name == name]
    uuid = data.workloads[own.definition][0].workload.uuid
    load = [sys.executable, str(ROOT / "benchmarks" / "serve_load.py"), client.url]
    found: dict[str, list[tuple[float, float, float]]] = {"quiet": [], "read": []}
    answers = []
    for number in range(2 * pairs):
        mode = ("quiet", "read", "read", "quiet")[number % 4]
        reader = None
        if mode == "read":
            command = [*load, "--rate", str(RATE), "--seconds", "5"]
            reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(1.0)
        view = client.wait(client.submit(own, [uuid], force=True).task_id)
        evaluation = view.traces[0]["evaluation"]
        assert view.started is not None
        assert view.finished is not None
        row = (
            evaluation["performance"]["latency_ms"],
            evaluation["provenance"]["wall_s"],
            view.finished - view.started,
        )
        found[mode].append(row)
        if reader is not None:
            answers.append(json.loads(reader.communicate()[0]))
    quiet, read = ([row[0] for row in found[mode]] for mode in ("quiet", "read"))
    return {
        "latency_us": {"quiet": _spread(quiet), "read": _spread(read)},
        "difference_percent": round(100 * (median(read) / median(quiet) - 1), 2),
        "evaluation_s": round(median(row[1] for row in found["quiet"]), 3),
        "task_s": round(median(row[2] for row in found["quiet"]), 3),
        "reads_p95_ms": max(one["p95_ms"] for one in answers),
        "reads_per_s": median(one["answers_per_s"] for one in answers),
    }


def _spread(latencies_ms: list[float]) -> list[float]:
    """Return least, median and greatest in microseconds."""
    return [round(1e3 * pick(latencies_ms), 3) for pick in (min, median, max)]


def main() -> int:
    """Measure, print, and say whether everything is as expected."""
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=12)
    made.add_argument("--only", nargs="+", metavar="NAME", default=[])
    options = made.parse_args()
    kind = options.device.partition(":")[0]
    if kind == "cuda":
        require_gpu()
    report: dict[str, Any] = {"device": options.device}
    with tempfile.TemporaryDirectory() as scratch:
        dataset = Path(scratch, "dataset")
        shutil.copytree(SAMPLE, dataset)
        with service(dataset, options.device) as client:
            report["surprises"] = judge_all(client, dataset, options.only, report)
            report["with_readers"] = compare_with_readers(
                client, dataset, REPEATED[kind], options.pairs
            )
    return told(report, report["surprises"])


if __name__ == "__main__":
    sys.exit(main())

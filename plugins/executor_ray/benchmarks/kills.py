"""Kill judges, nodes and drivers of a fleet while it works: no trace may be lost or doubled.

``python kills.py [KILLS [SEED]]`` prints JSON. Three nodes are simulated on this machine.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from small_cluster import SmallCluster, command, keys_of, make_dataset, small_cluster

_STUCK_S = 180.0


def processes_of(folder: Path) -> list[tuple[int, bytes]]:
    """Return the judges and candidates of a cluster, known by the caches of its nodes."""
    mark = f"FIB_CACHE_PATH={folder}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid, line = int(entry.name), (entry / "cmdline").read_bytes()
            ours = line.startswith(b"ray::Judge") or b"import_module(module)" in line
            if ours and mark in (entry / "environ").read_bytes():
                found.append((pid, line))
    return found


def judges_of(folder: Path) -> list[int]:
    """Return the process ids of the judges of a cluster."""
    return [pid for pid, line in processes_of(folder) if line.startswith(b"ray::Judge")]


class Chaos:
    """Runs a dataset on a cluster, and kills what works on it.

    Parameters
    ----------
    cluster : SmallCluster
        Where it runs.
    dataset : Path
        What is evaluated.
    seed : int
        Of what is killed, and when.
    """

    def __init__(self, cluster: SmallCluster, dataset: Path, seed: int) -> None:
        self._cluster, self._dataset = cluster, dataset
        self._random = random.Random(seed)
        self.killed: dict[str, int] = {"judge": 0, "node": 0, "driver": 0}
        self._log = dataset.with_suffix(".log").open("ab")
        self._driver = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = command(self._dataset, "--resume", address=self._cluster.address)
        return subprocess.Popen(arguments, stdout=self._log, stderr=self._log)

    def kill(self, what: str) -> None:
        """Kill a judge, a node or the driver, wherever its work is just then."""
        if self._driver.poll() is not None:
            return
        if what == "judge":
            judges = judges_of(self._cluster.folder)
            if not judges:
                return
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(judges), signal.SIGKILL)
        elif what == "node":
            self._cluster.restart(self._random.choice(sorted(self._cluster.nodes)))
        else:
            self._driver.kill()
            self._driver.wait()
            self._driver = self._start()
        self.killed[what] += 1

    def run(self, kills: int) -> int:
        """Kill so many, at random; return how many times a driver was started after the last."""
        while sum(self.killed.values()) < kills and self._driver.poll() is None:
            self.wait_for_progress(self._random.choice((0, 0, 1, 5)))
            time.sleep(self._random.uniform(0, 1.0))
            self.kill(self._random.choice(sorted(self.killed)))
        return self.finish()

    def wait_for_progress(self, count: int) -> None:
        """Wait for so many more traces, or the end of the driver."""
        before = len(keys_of(self._dataset))
        deadline = time.monotonic() + _STUCK_S
        while len(keys_of(self._dataset)) < before + count and self._driver.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError("the run is stuck")
            time.sleep(0.1)

    def finish(self) -> int:
        """Wait for the driver, and start others as long as they do not end well."""
        for again in range(5):
            if self._driver.wait(timeout=600) == 0:
                return again
            self._driver = self._start()
        raise RuntimeError(f"the run does not end well: see {self._log.name}")


def main() -> None:
    """Kill, and print JSON."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    with tempfile.TemporaryDirectory() as folder, small_cluster() as cluster:
        dataset = Path(folder) / "dataset"
        count = make_dataset(dataset, definitions=4, workloads=40, solutions=15)
        began = time.monotonic()
        chaos = Chaos(cluster, dataset, seed)
        restarts = chaos.run(kills)
        keys = keys_of(dataset)
        told = {
            "seed": seed,
            "evaluations": count,
            "killed": chaos.killed,
            "restarts_after_errors": restarts,
            "lost": count - len(set(keys)),
            "doubled": len(keys) - len(set(keys)),
            "seconds": round(time.monotonic() - began, 1),
        }
        print(json.dumps(told, indent=2))
        if told["lost"] or told["doubled"]:
            raise SystemExit(Path(dataset.with_suffix(".log")).read_text(errors="replace")[-8000:])


if __name__ == "__main__":
    main()

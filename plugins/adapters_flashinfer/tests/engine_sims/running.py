"""Running `drive` in a process of its own."""

import json
import os
import sys
from pathlib import Path

from fib_tests import forked

DRIVE = Path(__file__).with_name("drive.py")


def run(engine, folder):
    """Run an engine in a fresh process, on a dataset in a folder; return what `report` said."""
    from engine_sims import answers

    dataset = folder / "dataset"
    answers.write_dataset(dataset)
    # Solutions of a mapping are looked at more closely where their definitions are at hand: then
    # they get contiguous tensors only. What engines pass is to reach them, so they are not.
    settings = {
        "FIB_PLUGINS": "fib_adapters_flashinfer",
        "FIB_DATASET_PATH": str(folder / "nothing"),
        "FIB_CACHE_PATH": str(folder / "cache"),
        "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer"),
    }
    dropped = ("FIB_NO_PLUGINS", "FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "FIB_ADAPTERS")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    command = [sys.executable, str(DRIVE), engine, str(dataset)]
    done = forked.run(command, env={**kept, **settings}, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "log": done.stderr}


def workloads(folder):
    """Return the workloads that were traced, by definition."""
    found = {}
    for path in (folder / "dataset" / "workloads").rglob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.stem] = [json.loads(line)["workload"] for line in lines]
    return found

"""A cluster of real Ray processes on this machine, with nodes that differ, and a dataset for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from small_cluster import SmallCluster, command

HERE = Path(__file__).parent
SUPPORT = HERE.parents[2] / "tests" / "support" / "fib_tests" / "plugins"
NODES = ("node-0", "node-1", "node-2")
REFERENCE = "def run(x):\n    return x * 2\n"
WRONG = "def run(x):\n    return x * 3\n"
COMPILED = "void run(float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }"


class Fleet:
    """A cluster, and runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.cluster = SmallCluster(folder, nodes=0)
        for name in NODES:
            self.add(name, wait=False)
        self.cluster.wait()

    def add(self, name: str, *, wait: bool = True, **variables: str) -> None:
        """Start a node with a builder of C, on which the known kernel takes a second."""
        seconds = self.seconds(name)
        seconds.write_text("1.0")
        path = os.pathsep.join(map(str, (SUPPORT, HERE / "node_plugins")))
        given = {
            "PYTHONPATH": path,
            "FIB_PLUGINS": "compiling_plugin,played_check",
            "FIB_SANDBOX_WRITABLE": str(self.notes),
            "FLEET_TEST_SECONDS": str(seconds),
            **variables,
        }
        self.cluster.add(name, wait=wait, variables=given)

    def seconds(self, name: str) -> Path:
        """Return the file that says how long the known kernel takes on a node."""
        return self.folder / f"{name}-seconds"

    def run(self, dataset: Path, *more: str, address: str = "") -> subprocess.CompletedProcess[str]:
        """Run a dataset on the cluster."""
        given = command(dataset, *more, address=address or self.cluster.address)
        return subprocess.run(given, capture_output=True, text=True, timeout=110)


def make_doubles(root: Path, note: Path | None = None) -> Path:
    """Write a dataset; compilers of the solution in C leave a note."""
    import torch
    from safetensors.torch import save_file

    tensor = {"shape": ["n"], "dtype": "float32"}
    definition = {
        "name": "double",
        "op_type": "op",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": tensor},
        "outputs": {"y": tensor},
        "reference": REFERENCE,
    }
    _write(root / "definitions" / "op" / "double.json", definition)
    blob = root / "blob" / "op" / "x.safetensors"
    blob.parent.mkdir(parents=True)
    save_file({"x": torch.arange(16.0)}, str(blob))
    recorded = {"type": "safetensors", "path": "./blob/op/x.safetensors", "tensor_key": "x"}
    sources: list[dict[str, Any]] = [recorded, recorded, *([{"type": "random"}] * 4)]
    lines = [
        {
            "definition": "double",
            "workload": {"uuid": f"w{n}", "axes": {"n": 16}, "inputs": {"x": x}},
        }
        for n, x in enumerate(sources)
    ]
    path = root / "workloads" / "op" / "double.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    add_double(root, "right", REFERENCE)
    add_double(root, "wrong", WRONG)
    if note is not None:
        add_double(root, "in_c", f"//! note {note}\n{COMPILED}", language="testc")
    return root


def add_double(root: Path, name: str, source: str, *, language: str = "python") -> None:
    """Add a solution."""
    file = "main.py" if language == "python" else "main.c"
    solution = {
        "name": name,
        "definition": "double",
        "author": "ann",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": f"{file}::run",
            "destination_passing_style": language != "python",
        },
        "sources": [{"path": file, "content": source}],
    }
    _write(root / "solutions" / "ann" / "op" / "double" / f"{name}.json", solution)


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))

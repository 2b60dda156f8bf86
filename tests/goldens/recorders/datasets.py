"""The datasets that commands are tried on: the sample with recorded traces, and damaged ones."""

from __future__ import annotations

import copy
import gzip
import json
import os
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_TRACES = Path(__file__).parents[1] / "data" / "sample-traces.jsonl.gz"
HARDWARE = "Test CPU (2 cores)"  # of most sample traces; of the others it is "NVIDIA Test"
_BEFORE = 1_700_000_000  # when all damaged files were written


def write_sample(root: Path, folder: Path, traces: bool = True) -> None:
    """Copy the sample dataset of the repository, and add the recorded traces."""
    ignored = shutil.ignore_patterns("traces")
    shutil.copytree(root / "examples" / "sample-dataset", folder, ignore=ignored)
    if not traces:
        return
    types = {path.stem: path.parent.name for path in (folder / "definitions").rglob("*.json")}
    for line in sample_lines():
        name = json.loads(line)["definition"]
        path = folder / "traces" / types[name] / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)


def sample_lines() -> list[str]:
    """Return the recorded traces, one line each."""
    with gzip.open(SAMPLE_TRACES, "rt", encoding="utf-8") as file:
        return file.readlines()


# ------------------------------------------------------------------------------------ damaged ones

DEFINITION: dict[str, Any] = {
    "name": "double",
    "op_type": "op",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
SOLUTION: dict[str, Any] = {
    "name": "ann_double",
    "definition": "double",
    "author": "ann",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "destination_passing_style": False,
    },
    "sources": [{"path": "main.py", "content": "def run(x):\n    return x + x\n"}],
}
WORKLOAD: dict[str, Any] = {
    "definition": "double",
    "workload": {"axes": {"N": 16}, "inputs": {"x": {"type": "random"}}, "uuid": "w1"},
}
TRACE: dict[str, Any] = {
    **WORKLOAD,
    "solution": "ann_double",
    "evaluation": {
        "status": "PASSED",
        "environment": {"hardware": HARDWARE, "libs": {}},
        "timestamp": "2026-01-01T00:00:00+00:00",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": {
            "latency_ms": 1.0,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0,
        },
    },
}


def changed(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a copy with other values; ``a__b=c`` changes ``record["a"]["b"]``, None drops it."""
    made = copy.deepcopy(record)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        place.pop(last, None)
        if value is not None:
            place[last] = value
    return made


class Folder:
    """A small dataset that is written file by file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.json("definitions/op/double.json", DEFINITION)
        self.json("solutions/ann/op/double/ann_double.json", SOLUTION)
        self.line("workloads/op/double.jsonl", WORKLOAD)
        self.line("traces/op/double.jsonl", TRACE)

    def text(self, path: str, text: str, mode: str = "w") -> None:
        """Write, or with mode ``a`` append, a text."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open(mode, encoding="utf-8") as opened:
            opened.write(text)

    def json(self, path: str, record: dict[str, Any]) -> None:
        """Write a record to a file of its own."""
        self.text(path, json.dumps(record))

    def line(self, path: str, record: dict[str, Any]) -> None:
        """Append a record as a line."""
        self.text(path, json.dumps(record) + "\n", "a")

    def blob(self, path: str, count: int) -> None:
        """Write a tensor file with ``x``, so many zeros."""
        header = {"x": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
        text = json.dumps(header).encode()
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * count))


def _lines(folder: Folder) -> None:
    traces = "traces/op/double.jsonl"
    folder.line(traces, TRACE)  # twice
    folder.text(traces, "{not json}\n", "a")
    folder.line(traces, changed(TRACE, evaluation__status="FINE"))
    folder.line(traces, changed(TRACE, evaluation__performance=None))
    folder.line(traces, changed(TRACE, evaluation__performance__latency_ms=-1.0))
    folder.line(traces, changed(TRACE, evaluation__correctness__max_relative_error="NaN"))
    folder.line(traces, changed(TRACE, solution="gone"))
    folder.line(traces, changed(TRACE, definition="gone"))
    folder.text(traces, json.dumps(TRACE)[:60], "a")  # torn


def _definitions(folder: Folder) -> None:
    for name, changes in {
        "no_run": {"reference": "def go(x):\n    return x\n"},
        "no_python": {"reference": "def run(x:\n"},
        "axis": {"inputs": {"x": {"shape": ["M"], "dtype": "float32"}}},
        "dtype": {"inputs": {"x": {"shape": ["N"], "dtype": "float33"}}},
        "overlap": {"outputs": {"x": {"shape": ["N"], "dtype": "float32"}}},
        "constraint": {"constraints": ["N % 4 =="]},
        "negative": {"axes": {"N": {"type": "const", "value": -4}}},
        "arguments": {"reference": "def run(a, b):\n    return a\n"},
        "unwritten": {"op_type": None},
    }.items():
        folder.json(f"definitions/op/{name}.json", changed(DEFINITION, name=name, **changes))
    folder.json("definitions/other/double.json", DEFINITION)  # a second one of this name
    folder.text("definitions/op/torn.json", '{"name": "torn",\n "op_type": }')
    folder.json("definitions/misplaced.json", changed(DEFINITION, name="somewhere"))


def _solutions(folder: Folder) -> None:
    for name, changes in {
        "orphan": {"definition": "gone"},
        "entry": {"spec__entry_point": "other.py::run"},
        "no_symbol": {"spec__entry_point": "main.py::start"},
        "outside": {"sources": [{"path": "../main.py", "content": ""}]},
        "twice": {"sources": [*SOLUTION["sources"], *SOLUTION["sources"]]},
        "language": {"spec__language": "fortran"},
        "no_hardware": {"spec__target_hardware": []},
        "no_python": {"sources": [{"path": "main.py", "content": "def run(x:\n"}]},
        "arguments": {"sources": [{"path": "main.py", "content": "def run(a, b, c): pass\n"}]},
        "unspecified": {"spec": None},
    }.items():
        path = f"solutions/ann/op/double/{name}.json"
        folder.json(path, changed(SOLUTION, name=name, **changes))
    folder.json("solutions/bob/op/double/again.json", changed(SOLUTION, author="bob"))


def _workloads(folder: Folder) -> None:
    path = "workloads/op/double.jsonl"
    blob = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}
    for number, (key, value) in enumerate(
        [
            ("axes", {}),
            ("axes", {"N": -1}),
            ("axes", {"N": 4, "M": 4}),
            ("inputs", {}),
            ("inputs", {"x": {"type": "scalar", "value": 1}}),
            ("inputs", {"x": {**blob, "path": "blob/missing.safetensors"}}),
            ("inputs", {"x": {**blob, "path": "../x.safetensors"}}),
            ("inputs", {"x": {**blob, "tensor_key": "y"}}),
            ("inputs", {"x": blob}),
            ("inputs", {"x": {**blob, "path": "blob/pointer.safetensors"}}),
            ("axes", {"N": 16}),  # the same as w1
            ("axes", {"N": 0}),
        ],
        start=2,
    ):
        changes = {"workload__uuid": f"w{number}", f"workload__{key}": value}
        folder.line(path, changed(WORKLOAD, **changes))
    folder.blob("blob/x.safetensors", 3)
    folder.blob("blob/workloads/op/double/double_unused.safetensors", 3)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    folder.text("blob/pointer.safetensors", pointer)
    folder.line(path, WORKLOAD)  # twice


def _leftovers(folder: Folder) -> None:
    folder.text("traces/op/.double.jsonl.lock", "")
    folder.text("traces/op/.double.jsonl.tmp", "half")
    folder.text("traces/op/double.jsonl.torn", "half")
    folder.text("traces/op/notes.txt", "what is this?")
    folder.text("stray.json", "{}")
    (folder.path / "solutions" / "link.json").symlink_to("nowhere.json")


def _old_layout(folder: Folder) -> None:
    shutil.rmtree(folder.path / "workloads")
    folder.line("traces/workloads/op/double.jsonl", WORKLOAD)
    folder.line("traces/op/double.jsonl", changed(WORKLOAD, workload__uuid="w2"))
    old = changed(TRACE, evaluation__log=None)
    old["evaluation"].update(log_file="run.log", error=None)
    folder.line("traces/op/double.jsonl", old)
    definition = changed(DEFINITION, name="old", op_type=None)
    folder.json("definitions/op/old.json", {**definition, "type": "op"})


def _nothing(folder: Folder) -> None:
    shutil.rmtree(folder.path)
    folder.path.mkdir()


DAMAGED: dict[str, Callable[[Folder], None]] = {
    "sound": lambda folder: None,
    "lines": _lines,
    "definitions": _definitions,
    "solutions": _solutions,
    "workloads": _workloads,
    "leftovers": _leftovers,
    "old layout": _old_layout,
    "empty": _nothing,
}


def write_damaged(name: str, path: Path) -> None:
    """Write one of the `DAMAGED` datasets to a new folder."""
    shutil.rmtree(path, ignore_errors=True)
    DAMAGED[name](Folder(path))
    for file in path.rglob("*"):
        if file.is_file():
            os.utime(file, (_BEFORE, _BEFORE))

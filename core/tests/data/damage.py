"""Damage done to datasets on purpose, and how tests look at it."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

from flashinfer_bench.data.repair import examine

NAME = "gemm_n8_k4"
TRACES = f"traces/gemm/{NAME}.jsonl"
WORKLOADS = f"workloads/gemm/{NAME}.jsonl"


def kinds(diagnosis):
    return [one.kind for one in diagnosis.issues]


def only(root):
    (found,) = examine(root).issues
    return found


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def make_old(path):
    before = time.time() - 7200
    os.utime(path, (before, before))


def contents(root):
    """Return every file of a dataset that readers look at."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.startswith((".", "doctor_")) for part in path.parts)
    }


def write_blob(path, count=2):
    header = {"x": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * count))
    make_old(path)


def named(make, blob, uuid="w9"):
    record = make.trace_record(None, uuid=uuid, m=2)
    name = next(iter(record["workload"]["inputs"]))
    spec = {"type": "safetensors", "path": blob, "tensor_key": "x"}
    record["workload"]["inputs"][name] = spec
    return json.dumps(record) + "\n"


DEEP = []  # what has to be taken away again: pytest cannot, it recurses


def flatten():
    """Remove what `deepen` has made."""
    before = Path.cwd()
    while DEEP:
        top, _ = DEEP.pop()
        os.chdir(top.parent)
        depth = 0
        while Path(top.name).is_dir():
            os.chdir(top.name)
            depth += 1
        for entry in list(Path().iterdir()):
            entry.unlink()
        for _ in range(depth):
            os.chdir("..")
            Path(top.name).rmdir()
    os.chdir(before)


def deepen(folder, levels=2200, name="d", file=None):
    """Make folders in folders, more of them than Python can recurse, and than a path can name."""
    before = Path.cwd()
    os.chdir(folder)
    DEEP.append((Path(folder) / name, levels))
    try:
        for _ in range(levels):
            Path(name).mkdir()
            os.chdir(name)
        if file is not None:
            Path(file).touch()
    finally:
        os.chdir(before)

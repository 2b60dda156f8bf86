"""Damage done to datasets on purpose, and how tests look at it."""

from __future__ import annotations

import json
import os
import struct
import time
from importlib.util import find_spec

NAME = "gemm_n8_k4"
TRACES = f"traces/gemm/{NAME}.jsonl"
WORKLOADS = f"workloads/gemm/{NAME}.jsonl"


def kinds(diagnosis):
    return [one.kind for one in diagnosis.issues]


def only(root):
    from fib_datasets.repair import examine

    (found,) = examine(root).issues
    return found


def assert_clean(root):
    """All of a dataset can be read, and the doctor, where it is installed, finds nothing."""
    from flashinfer_bench.data import TraceSet

    assert TraceSet.from_path(root).workloads is not None  # reading raises what is wrong
    if find_spec("fib_datasets"):
        from fib_datasets.repair import examine

        assert examine(root).issues == ()


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

"""Small datasets for the tests of tables, as plain records that each test changes as it needs."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from flashinfer_bench.apply.keys import ApplyKey

HERE = "NVIDIA Test GPU"
ELSEWHERE = "NVIDIA Other GPU"
REFERENCE = "def run(x):\n    return x\n"


def definition(name="scale", dtype="bfloat16", **changes):
    return {
        "name": name,
        "op_type": "scaling",
        "axes": {
            "rows": {"type": "var"},
            "columns": {"type": "var"},
            "depth": {"type": "const", "value": 4},
        },
        "inputs": {
            "x": {"shape": ["rows", "depth"], "dtype": dtype},
            "y": {"shape": ["columns"], "dtype": dtype},
        },
        "outputs": {"out": {"shape": ["rows", "depth"], "dtype": dtype}},
        "reference": REFERENCE.replace("(x)", "(x, y)"),
        **changes,
    }


def solution(name="fast", of="scale", language="python", target=(HERE,), **changes):
    return {
        "name": name,
        "definition": of,
        "author": "somebody",
        "spec": {
            "language": language,
            "target_hardware": list(target),
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": REFERENCE}],
        **changes,
    }


def workload(rows=1, columns=2, uuid=None, **changes):
    return {
        "uuid": uuid or f"w-{rows}-{columns}",
        "axes": {"rows": rows, "columns": columns},
        "inputs": {"x": {"type": "random"}, "y": {"type": "random"}},
        **changes,
    }


def trace(name="fast", latency=1.0, of="scale", on=None, hardware=HERE, **changes):
    """Return a trace that passed; `changes` are of its evaluation, None takes a field out."""
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": hardware, "libs": {"torch": "2.9.0", "cuda": "12.8"}},
        "timestamp": "2026-01-01T00:00:00",
        "log": "all is well",
        "correctness": {"max_relative_error": 1e-3, "max_absolute_error": 1e-3},
        "performance": {
            "latency_ms": latency,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0 / latency if latency else 0.0,
        },
        **changes,
    }
    evaluation = {key: value for key, value in evaluation.items() if value is not None}
    problem = copy.deepcopy(on or workload())
    return {"definition": of, "workload": problem, "solution": name, "evaluation": evaluation}


def failed(status, name="fast", **changes):
    """Return a trace of a run that did not pass."""
    made = trace(name, **changes)
    made["evaluation"]["status"] = status
    del made["evaluation"]["performance"]
    if status != "INCORRECT_NUMERICAL":
        del made["evaluation"]["correctness"]
    return made


def errors(absolute, relative, **more):
    return {"max_absolute_error": absolute, "max_relative_error": relative, **more}


def key(rows=1, columns=2, *feats):
    return ApplyKey((("rows", rows), ("columns", columns)), tuple(feats))


class Folder:
    """A dataset folder."""

    def __init__(self, root):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def put(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def definition(self, record, name=None):
        return self.put(f"definitions/{name or record['name']}.json", json.dumps(record))

    def solution(self, record, name=None):
        return self.put(f"solutions/{name or record['name']}.json", json.dumps(record))

    def traces(self, records, name="traces/all.jsonl"):
        return self.put(name, "".join(json.dumps(one) + "\n" for one in records))

    @classmethod
    def of(cls, root, traces=(), definitions=None, solutions=None):
        made = cls(root)
        for one in [definition()] if definitions is None else definitions:
            made.definition(one)
        names = dict.fromkeys((one["definition"], one["solution"]) for one in traces)
        known = [solution(name, of) for of, name in names if name]
        for one in known if solutions is None else solutions:
            made.solution(one)
        made.traces(traces)
        return made

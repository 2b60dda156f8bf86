"""Small datasets on disk whose solutions tell by what they return who ran.

Every definition doubles its input. A solution adds its own tag, so that nobody needs to watch it.
"""

from __future__ import annotations

import json
from pathlib import Path

from flashinfer_bench.tensors.devices import this_hardware

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}

VALUE = "def run(x):\n    return x * 2 + {tag}\n"
BROKEN = "def run(x)\n"


def definition(name="double", **changes):
    return {
        "name": name,
        "op_type": "op",
        "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
        "inputs": {"x": MATRIX},
        "outputs": {"y": MATRIX},
        "reference": "def run(x):\n    return x * 2\n",
        **changes,
    }


def solution(name, of="double", tag=0, source=VALUE, language="python"):
    return {
        "name": name,
        "definition": of,
        "author": "somebody",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": source.format(tag=tag)}],
    }


def trace(name, n, latency_ms=1.0, of="double", hardware=None):
    return {
        "definition": of,
        "workload": {"uuid": f"w{n}", "axes": {"n": n}, "inputs": {"x": {"type": "random"}}},
        "solution": name,
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": hardware or this_hardware("cpu"), "libs": {}},
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
            "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
            "performance": {
                "latency_ms": latency_ms,
                "reference_latency_ms": 2.0,
                "speedup_factor": 2.0 / latency_ms,
            },
        },
    }


class Dataset:
    """A dataset folder that grows."""

    def __init__(self, root):
        self.root = Path(root)
        self._solutions = 0

    def __fspath__(self):
        return str(self.root)

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def definition(self, name="double", **changes):
        self.put(f"definitions/{name}.json", json.dumps(definition(name, **changes)))
        return self

    def solution(self, name, of="double", **changes):
        self.put(f"solutions/{of}/{name}.json", json.dumps(solution(name, of, **changes)))
        return self

    def wins(self, name, *sizes, of="double", latency_ms=1.0, **changes):
        """Add records of a solution on some sizes."""
        self._solutions += 1
        records = [trace(name, n, latency_ms, of, **changes) for n in sizes]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        self.put(f"traces/op/{of}.{self._solutions}.jsonl", lines)
        return self

    def add(self, name, *sizes, of="double", latency_ms=1.0, **changes):
        """Add a solution with its records."""
        return self.solution(name, of, **changes).wins(name, *sizes, of=of, latency_ms=latency_ms)


def sample(root):
    """Return a dataset: "hundred" is best for 2 rows, "thousand" for 3; "slow" has both."""
    made = Dataset(root).definition()
    made.add("hundred", 2, tag=100)
    made.add("thousand", 3, tag=1000)
    return made.add("slow", 2, 3, tag=10000, latency_ms=1.5)

"""Writes small datasets file by file, sound and broken ones, without help from the project."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from pathlib import Path

BITS = {"F32": 32, "BF16": 16, "I32": 32, "U8": 8, "F4": 4}


CLOSE_RACE_ORIGIN = {
    "timer": "cupti",
    "stop_rule": "rse",
    "timing": {"cache": "cold", "reference": "beside"},
}


class DatasetMaker:
    """Writes the records of one dataset; everything has a default that fits the rest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def raw(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def _json(self, path: str, record: dict[str, Any]) -> Path:
        return self.raw(path, json.dumps(record))

    def _append(self, path: str, record: dict[str, Any]) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return target

    def definition(self, name: str = "double", op_type: str = "op", **changes: Any) -> Path:
        record = {
            "name": name,
            "op_type": op_type,
            "axes": {"N": {"type": "var"}},
            "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
            "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
            "reference": "def run(x):\n    return x * 2\n",
            **changes,
        }
        return self._json(f"definitions/{op_type}/{name}.json", record)

    def solution(
        self,
        name: str = "alice_double",
        definition: str = "double",
        author: str = "alice",
        code: str = "def run(x):\n    return x + x\n",
        file: Optional[str] = None,
        **spec: Any,
    ) -> Path:
        record = {
            "name": name,
            "definition": definition,
            "author": author,
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
                **spec,
            },
            "sources": [{"path": "main.py", "content": code}],
        }
        return self._json(f"solutions/{author}/op/{definition}/{file or name}.json", record)

    def workload(
        self,
        definition: str = "double",
        uuid: str = "w1",
        axes: Optional[dict[str, Any]] = None,
        inputs: Optional[dict[str, Any]] = None,
        op_type: str = "op",
        folder: str = "workloads",
    ) -> Path:
        record = {
            "definition": definition,
            "workload": {
                "axes": {"N": 16} if axes is None else axes,
                "inputs": {"x": {"type": "random"}} if inputs is None else inputs,
                "uuid": uuid,
            },
        }
        return self._append(f"{folder}/{op_type}/{definition}.jsonl", record)

    def trace(
        self,
        solution: str = "alice_double",
        definition: str = "double",
        uuid: str = "w1",
        status: str = "PASSED",
        latency_ms: float = 1.0,
        reference_ms: float = 2.0,
        hardware: str = "Test CPU",
        timestamp: str = "2026-01-01T00:00:00",
        log: str = "",
        axes: Optional[dict[str, int]] = None,
        samples_ms: Optional[list[float]] = None,
        error: float = 1e-6,
        speedup: Optional[float] = None,
        provenance: Optional[dict[str, Any]] = None,
        **performance: Any,
    ) -> Path:
        evaluation: dict[str, Any] = {
            "status": status,
            "environment": {"hardware": hardware, "libs": {}},
            "timestamp": timestamp,
            "log": log,
        }
        if status in ("PASSED", "INCORRECT_NUMERICAL"):
            errors = {"max_relative_error": error, "max_absolute_error": error}
            evaluation["correctness"] = errors
        if status == "PASSED":
            computed = reference_ms / latency_ms if latency_ms else 0.0
            evaluation["performance"] = {
                "latency_ms": latency_ms,
                "reference_latency_ms": reference_ms,
                "speedup_factor": computed if speedup is None else speedup,
                **({"samples_ms": samples_ms} if samples_ms is not None else {}),
                **performance,
            }
        if provenance is not None:
            evaluation["provenance"] = provenance
        record = {
            "definition": definition,
            "solution": solution,
            "workload": {
                "axes": axes or {"N": 16},
                "inputs": {"x": {"type": "random"}},
                "uuid": uuid,
            },
            "evaluation": evaluation,
        }
        return self._append(f"traces/op/{definition}.jsonl", record)

    def blob(self, path: str, tensors: dict[str, tuple[str, list[int]]]) -> Path:
        """Write a safetensors file of zeros."""
        header: dict[str, Any] = {}
        size = 0
        for key, (dtype, shape) in tensors.items():
            count = 1
            for extent in shape:
                count *= extent
            end = size + count * BITS[dtype] // 8
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [size, end]}
            size = end
        text = json.dumps(header).encode()
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
        return target

    def from_blob(self, path: str, key: str = "x", uuid: str = "w1") -> Path:
        """Write a workload whose input is read from a file."""
        spec = {"type": "safetensors", "path": path, "tensor_key": key}
        return self.workload(uuid=uuid, inputs={"x": spec})

    def sound(self) -> DatasetMaker:
        """Write a small dataset without any fault: two solutions, two workloads, four traces."""
        self.definition()
        self.solution("baseline_double", author="baseline")
        self.solution("alice_double", author="alice")
        for index, uuid in enumerate(("w1", "w2")):
            axes = {"N": 16 * (index + 1)}
            self.workload(uuid=uuid, axes=axes)
            self.trace("baseline_double", uuid=uuid, latency_ms=2.0, axes=axes)
            self.trace("alice_double", uuid=uuid, latency_ms=0.5, axes=axes)
        return self

    def close_race(self) -> DatasetMaker:
        """Write three solutions on one workload; the first two cannot be told apart."""
        self.definition()
        self.workload()
        figures = {"alice_double": (1.0, (0.9, 1.1)), "bob_double": (1.05, (1.0, 1.2))}
        for name, (latency, ends) in {**figures, "baseline_double": (4.0, (3.9, 4.1))}.items():
            self.solution(name, author=name.partition("_")[0])
            self.trace(
                name, latency_ms=latency, interval_ms=list(ends), samples_ms=[latency] * 8,
                speedup_interval=[0.4, 2.5], provenance=CLOSE_RACE_ORIGIN,
            )  # fmt: skip
        return self

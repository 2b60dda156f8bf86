"""A dataset with workloads of ragged batches, written without help from the project."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Optional

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DEFINITION = {
    "name": "ragged",
    "op_type": "gqa",
    "axes": {
        "batch": {"type": "var"},
        "len_indptr": {"type": "var"},
        "total": {"type": "var"},
        "H": {"type": "const", "value": 2},
    },
    "inputs": {
        "q": {"shape": ["batch", "H"], "dtype": "bfloat16"},
        "k": {"shape": ["total", "H"], "dtype": "float32"},
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"o": {"shape": ["batch", "H"], "dtype": "bfloat16"}},
    "reference": "def run(q, k, kv_indptr, scale):\n    return q\n",
    "constraints": ["len_indptr == batch + 1", "total == kv_indptr[-1].item()"],
}


class Writer:
    """Writes records of one dataset."""

    def __init__(self, root: Path) -> None:
        self.root = root
        path = root / "definitions" / "gqa" / "ragged.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(DEFINITION))

    @property
    def workloads(self) -> Path:
        return self.root / "workloads" / "gqa" / "ragged.jsonl"

    def blob(self, name: str, values: list[int], *, age: float = 0.0) -> str:
        import os
        import time

        path = self.root / "blob" / "workloads" / "gqa" / "ragged" / f"{name}.safetensors"
        data = struct.pack(f"<{len(values)}i", *values)
        entry = {"dtype": "I32", "shape": [len(values)], "data_offsets": [0, len(data)]}
        header = json.dumps({"kv_indptr": entry}).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        os.utime(path, (time.time() - age,) * 2)
        return f"./{path.relative_to(self.root).as_posix()}"

    def workload(
        self,
        uuid: str,
        indptr: Optional[list[int]] = None,
        *,
        blob: Optional[str] = None,
        scale: Any = 0.5,
        **axes: int,
    ) -> dict[str, Any]:
        values = [0, 2, 5] if indptr is None else indptr
        size = max(len(values) - 1, 0)
        fits = {"batch": size, "len_indptr": len(values), "total": values[-1] if values else 0}
        path = self.blob(uuid, values) if blob is None else blob
        tensor = {"type": "safetensors", "path": path, "tensor_key": "kv_indptr"}
        record = {
            "definition": "ragged",
            "solution": None,
            "workload": {
                "axes": {**fits, **axes},
                "inputs": {
                    "q": {"type": "random"},
                    "k": {"type": "random"},
                    "kv_indptr": tensor,
                    "scale": {"type": "scalar", "value": scale},
                },
                "uuid": uuid,
            },
            "evaluation": None,
        }
        self.append(self.workloads, record)
        return record

    def trace(self, record: dict[str, Any], solution: str = "s") -> None:
        evaluation = {
            "status": "RUNTIME_ERROR",
            "environment": {"hardware": "x", "libs": {}},
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
        }
        path = self.root / "traces" / "gqa" / "ragged.jsonl"
        self.append(path, {**record, "solution": solution, "evaluation": evaluation})

    @staticmethod
    def append(path: Path, record: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def left(self) -> list[str]:
        lines = self.workloads.read_text().splitlines()
        return [json.loads(line)["workload"]["uuid"] for line in lines]

    def blobs(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "blob").rglob("*.safetensors"))

    def files(self) -> dict[Path, bytes]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found if not path.name.endswith(".lock")}


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "dataset")

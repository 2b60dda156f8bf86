"""Datasets and records for tests of services: solutions and traces of the scaled addition."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional

from fib_tests.scaled_add import DEFINITION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME: str = DEFINITION["name"]
UUIDS = ("two", "five", "secret")


def solution(
    name: str = "mine", source: Optional[str] = None, *, author: str = "ann", **changes: Any
) -> dict[str, Any]:
    """Make a solution as JSON; the source is that of the reference by default."""
    return {
        "name": name,
        "definition": NAME,
        "author": author,
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": source or DEFINITION["reference"]}],
        **changes,
    }


def trace(
    solution_name: str, uuid: str = "two", latency: Optional[float] = 1.0, **extra: Any
) -> dict[str, Any]:
    """Make a trace as JSON; it has failed without a latency."""
    evaluation: dict[str, Any] = {
        "status": "PASSED" if latency else "RUNTIME_ERROR",
        "environment": {"hardware": "CPU", "libs": {}},
        "timestamp": "2026-01-02T03:04:05",
        "log": "",
    }
    if latency:
        evaluation["correctness"] = {
            "max_absolute_error": 0.0,
            "max_relative_error": 0.0,
            "extra": extra,
        }
        evaluation["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0 / latency,
        }
    return {
        "definition": NAME,
        "workload": workload(uuid),
        "solution": solution_name,
        "evaluation": evaluation,
    }


def workload(uuid: str) -> dict[str, Any]:
    """Make a workload as JSON."""
    inputs: dict[str, Any] = {"x": {"type": "random"}, "y": {"type": "random"}}
    inputs["scale"] = {"type": "scalar", "value": 0.5}
    return {"uuid": uuid, "axes": {"tokens": 1 + UUIDS.index(uuid)}, "inputs": inputs}


def make_dataset(root: Path, uuids: Sequence[str] = UUIDS) -> Path:
    """Make a dataset with one definition, some workloads and one solution; return its folder."""
    lines = [{"definition": NAME, "workload": workload(one)} for one in uuids]
    for folder, name, text in (
        ("definitions", f"{NAME}.json", json.dumps(DEFINITION)),
        ("workloads", f"{NAME}.jsonl", "".join(json.dumps(one) + "\n" for one in lines)),
    ):
        path = root / folder / "op" / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    add_solution(root, solution("first"))
    return root


def append_traces(root: Path, *traces: dict[str, Any]) -> None:
    """Add traces to a dataset as another program would."""
    path = root / "traces" / "op" / f"{NAME}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in traces)


def add_solution(root: Path, record: dict[str, Any]) -> None:
    """Add a solution to a dataset as another program would."""
    path = root / "solutions" / record["author"] / "op" / NAME / f"{record['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record), encoding="utf-8")

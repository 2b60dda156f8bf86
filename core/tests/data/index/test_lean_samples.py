"""Samples as text in the index: counted, read again, and as strictly as by the models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

DEFINITION = {
    "name": "double",
    "op_type": "double",
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
WORKLOAD = {"axes": {"N": 2}, "inputs": {"x": {"type": "random"}}, "uuid": "w"}


def dataset(root: Path, **performance: Any) -> Path:
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": "a CPU"},
        "timestamp": "2026-01-01T00:00:00",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": {
            "latency_ms": 1.0,
            "reference_latency_ms": 2.0,
            "speedup_factor": 2.0,
            **performance,
        },
    }
    trace = {"definition": "double", "workload": WORKLOAD, "solution": "s"}
    (root / "definitions" / "double").mkdir(parents=True)
    (root / "definitions" / "double" / "double.json").write_text(json.dumps(DEFINITION))
    (root / "traces" / "double").mkdir(parents=True)
    line = json.dumps({**trace, "evaluation": evaluation})
    (root / "traces" / "double" / "double.jsonl").write_text(line + "\n")
    return root


@pytest.mark.parametrize("samples", [[0.5, 0.25], "f32:AAAAPwAAgD4="])
def test_both_spellings_are_counted_and_read(tmp_path: Path, samples: object) -> None:
    root = dataset(tmp_path, samples_ms=samples, interval_ms=[0.25, 0.5], outliers=0)
    for _ in range(2):  # at first the lines are read, then the index
        runs = TraceSet.from_path(root).run_columns("double")["double"]
        assert list(runs.sample_counts) == [2]
        assert runs.details([0])[0].samples_ms == (0.5, 0.25)


@pytest.mark.parametrize(
    "fields",
    [
        {"samples_ms": "f32:AAA="},
        {"samples_ms": "nonsense"},
        {"reference_samples_ms": "f32:AADAfw=="},
        {"interval_ms": [2.0, 1.0]},
        {"speedup_interval": [2.0, 1.0]},
        {"outliers": -1},
        {"dropped": [[0]]},
    ],
)
def test_what_the_models_refuse_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    root = dataset(tmp_path, **fields)
    with pytest.raises(DataError):
        TraceSet.from_path(root).run_columns("double")["double"]
    with pytest.raises(DataError):
        list(TraceSet.from_path(root).traces["double"])

"""A writer of datasets, shared with the tests of the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

_spec = importlib.util.spec_from_file_location(
    "fib_tests_dataset_maker", Path(__file__).parents[1] / "cli" / "dataset_maker.py"
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

# A busy machine is no failure.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture
def maker(tmp_path: Path) -> Any:
    """Writes into an empty dataset."""
    return _module.DatasetMaker(tmp_path / "dataset")


@pytest.fixture
def make_result() -> Any:
    """Makes a result; keyword arguments replace its fields."""
    from flashinfer_bench.data import EvaluationStatus
    from flashinfer_bench.report import Result

    def make(solution: str = "alice_double", **changes: Any) -> Result:
        status = EvaluationStatus(changes.pop("status", "PASSED"))
        passed = status is EvaluationStatus.PASSED
        latency = changes.pop("latency_ms", 1.0 if passed else None)
        reference = changes.pop("reference_latency_ms", 2.0 if passed else None)
        fields: dict[str, Any] = {
            "definition": "double",
            "op_type": "op",
            "solution": solution,
            "author": solution.partition("_")[0],
            "language": "python",
            "workload": "w1",
            "axes": {"N": 16},
            "hardware": "Test CPU",
            "status": status,
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
            "latency_ms": latency,
            "reference_latency_ms": reference,
            "speedup": reference / latency if latency and reference else None,
        }
        return Result(**{**fields, **changes})

    return make

"""Results as reports read them."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def make_result() -> Any:
    """Makes a result; keyword arguments replace its fields."""
    from flashinfer_bench.data import EvaluationStatus
    from flashinfer_bench.data.run_source import RunDetails
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
            "latency_ms": latency,
            "reference_latency_ms": reference,
        }
        log, samples = changes.pop("log", ""), changes.pop("samples_ms", ())
        rows, timing = changes.pop("dropped_rows", ()), changes.pop("timing", {})
        fields["sample_total"] = len(samples)
        fields["details"] = (RunDetails(log, samples, rows, timing),)
        return Result(**{**fields, **changes})

    return make

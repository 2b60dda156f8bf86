"""Results as reports read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def a_result(solution: str = "alice_double", **changes: Any) -> Any:
    """Make a result; keyword arguments replace its fields."""
    from flashinfer_bench.data import EvaluationStatus
    from flashinfer_bench.data.run_source import Clock, Origin, Task
    from flashinfer_bench.report import Result

    status = EvaluationStatus(changes.pop("status", "PASSED"))
    passed = status is EvaluationStatus.PASSED
    samples, dropped_rows = changes.pop("samples_ms", ()), changes.pop("dropped_rows", ())
    log, timing = changes.pop("log", ""), changes.pop("timing", {})
    definition, workload = changes.pop("definition", "double"), changes.pop("workload", "w1")
    fields: dict[str, Any] = {
        "source": Given(log, samples, dropped_rows, timing),
        "task": Task(definition, solution, workload, changes.pop("axes", {"N": 16})),
        "origin": Origin(changes.pop("hardware", "Test CPU"), clock=changes.pop("clock", Clock())),
        "op_type": "op",
        "author": solution.partition("_")[0],
        "language": "python",
        "status": status,
        "timestamp": "2026-01-01T00:00:00",
        "latency_ms": 1.0 if passed else None,
        "reference_latency_ms": 2.0 if passed else None,
        "sample_total": len(samples),
    }
    return Result(**{**fields, **changes})


@pytest.fixture
def make_result() -> Any:
    """Return what makes a result."""
    return a_result


class Given:
    """Stands in for the file of a run: has its log, samples and what is told of their timing."""

    def __init__(self, log: str, samples: Any, dropped: Any, timing: Any) -> None:
        from flashinfer_bench.data import Evaluation, Performance
        from flashinfer_bench.data.trace import Provenance

        performance = Performance.model_construct(samples_ms=list(samples), dropped=list(dropped))
        self._trace = SimpleNamespace(
            evaluation=Evaluation.model_construct(
                log=log,
                performance=performance,
                provenance=Provenance.model_construct(timing=timing),
            )
        )

    def read(self, rows: Any) -> Any:
        return [self._trace for _ in rows]

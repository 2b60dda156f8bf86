"""Two solutions with scripted clocks, compared in scripted processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench.compare.contest import CompareSettings, ContestRun
from flashinfer_bench.bench.compare.result import Contest

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.compare.result import ContestResult

SOURCE = "def run(x):\n    return x + x\n"
STEADY = "SAMPLES = [5.00, 5.02, 4.99, 5.01, 5.03, 4.98, 5.00]\n"


def steady(factor: float, text: str = "") -> str:
    """Return a solution whose latencies are about 5 ms times `factor`."""
    return f"{STEADY}SAMPLES = [{factor} * s for s in SAMPLES]\n{text}{SOURCE}"


@pytest.fixture
def contest(problems) -> Callable[..., Contest]:
    def make(baseline: str, candidate: str, **changes: Any) -> Contest:
        values = {
            "definition": problems.definition(),
            "workload": problems.workload(),
            "baseline": problems.solution(baseline, "old"),
            "candidate": problems.solution(candidate, "new"),
        }
        return Contest(**{**values, **changes})

    return make


@pytest.fixture
def compare(session, contest, evaluator, settings) -> Callable[..., ContestResult]:
    """Compares two sources: ``compare(baseline, candidate, max_seconds=…, trust=…)``."""

    def run(
        baseline: str,
        candidate: str,
        *,
        max_seconds: float = 3.0,
        problem: dict[str, Any] | None = None,
        on_launch: Any = lambda launches, seconds: None,
        **changes: Any,
    ) -> ContestResult:
        held = replace(session(profile_baseline=False), **{"trust": "full", **changes})
        one = contest(baseline, candidate, **(problem or {}))
        wanted = CompareSettings(max_seconds=max_seconds)
        return ContestRun(held, one, evaluator, settings(), wanted, on_launch=on_launch).run()

    return run

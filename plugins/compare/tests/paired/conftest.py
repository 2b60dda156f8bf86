"""Two solutions with scripted clocks, compared in scripted processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fib_compare.paired.comparer import CompareSettings, ContestRun
from fib_compare.paired.result import Contest
from fib_judge.records import VerifiedSession
from fib_tests.scripted import cache_folder, catalog, evaluator, executor, problems, settings
from fib_tests.scripted import session as plain_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from fib_compare.paired.result import ContestResult


@pytest.fixture
def session(plain_session: Any) -> Any:
    """``session(**changes)``: a run of the judge's."""

    def make(**changes: Any) -> VerifiedSession:
        return VerifiedSession(**vars(plain_session(**changes)))

    return make


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
        held = session(profile_baseline=False, **changes)
        one = contest(baseline, candidate, **(problem or {}))
        wanted = CompareSettings(max_seconds=max_seconds)
        return ContestRun(held, one, evaluator, settings(), wanted, on_launch=on_launch).run()

    return run

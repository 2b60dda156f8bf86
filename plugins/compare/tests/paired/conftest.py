"""Two solutions with scripted clocks, compared in scripted processes."""

import pytest

from fib_compare.paired.comparer import CompareSettings, ContestRun
from fib_compare.paired.result import Contest
from fib_judge.records import VerifiedSession
from fib_tests.candidates import bench, definition_of, server_executor, solution_of
from fib_tests.rounds import session_with_rounds
from fib_tests.scripted import cache_folder, catalog, evaluator, executor, problems, settings
from fib_tests.scripted import session as plain_session


@pytest.fixture
def session(plain_session):
    """``session(**changes)``: a run of the judge's."""
    return lambda **changes: VerifiedSession(**vars(plain_session(**changes)))


@pytest.fixture
def contest(problems):
    def make(baseline, candidate, **changes):
        values = {
            "definition": problems.definition(),
            "workload": problems.workload(),
            "baseline": problems.solution(baseline, "old"),
            "candidate": problems.solution(candidate, "new"),
        }
        return Contest(**{**values, **changes})

    return make


@pytest.fixture
def compare(session, contest, evaluator, settings):
    """Compares two sources: ``compare(baseline, candidate, max_seconds=…, trust=…)``."""

    def run(baseline, candidate, *, max_seconds=3.0, problem=None, **changes):
        held = session(profile_baseline=False, **changes)
        one = contest(baseline, candidate, **(problem or {}))
        wanted = CompareSettings(max_seconds=max_seconds)
        try:
            return ContestRun(held, one, evaluator, settings(), wanted).run()
        finally:
            held.pool.clear()
            held.pool.settle()

    return run

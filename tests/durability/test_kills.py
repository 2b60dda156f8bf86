"""``kill -9`` of appends and of ``fib run``; the scripts beside do it at 200 points."""

from __future__ import annotations

import importlib.util

import pytest


def test_appends_that_are_killed_lose_nothing(kills, tmp_path):
    tally = kills.kill_appends(tmp_path, points=6, seed=1)
    assert tally.problems == []
    assert tally.committed >= tally.points == 6


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="a run needs torch")
@pytest.mark.skipif(
    not importlib.util.find_spec("fib_builder_python"), reason="the solutions are in Python"
)
@pytest.mark.timeout(300)
def test_runs_that_are_killed_are_finished_by_resume(kills, tmp_path):
    tally = kills.kill_runs(tmp_path, points=3, seed=2)
    assert tally.problems == []
    assert tally.finished >= 1

"""Timed calls whose number nobody knows beforehand: batches and time limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fib_tests.scripted import attempt_of
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.calls import Deadline, take_calls
from flashinfer_bench.bench.stopping import StoppingRule, TimingPlan


class _Course:
    """Calls of a fake candidate by a plan, and what was asked meanwhile."""

    def __init__(self, executor: Any, problems: Any, session: Any, source: str) -> None:
        self._attempt = attempt_of(session(), executor, problems, source, [[torch.rand(300)]])
        self.asked: list[int | None] = []
        self.batches: list[tuple[int, int, bool]] = []

    def take(self, plan: TimingPlan, visit: Any = lambda place: False) -> Any:
        def fire(place: int | None) -> Any:
            self.asked.append(place)
            return self._attempt.fire(0)

        begin = lambda *batch: self.batches.append(batch)  # noqa: E731
        return take_calls(self._attempt, plan, fire, visit=visit, begin=begin)


@pytest.fixture
def course(executor: Any, problems: Any, session: Any) -> Any:
    return lambda source="SAMPLES = [2.0, 2.001]": _Course(
        executor, problems, session, f"{source}\ndef run(x): return x"
    )


class _Quiet(StoppingRule):
    """Stop when all samples are alike."""

    def wants_more(self, samples_ms: Any) -> bool:
        return bool(max(samples_ms) > min(samples_ms) * 1.01)


def adaptive(**changes: Any) -> TimingPlan:
    values = {"warmup": 2, "batch": 10, "min_samples": 30, "max_samples": 100}
    return TimingPlan(_Quiet(), **{**values, **changes})


class TestBatches:
    def test_a_quiet_solution_needs_few(self, course: Any) -> None:
        made = course()
        taken = made.take(adaptive(max_samples=1000))
        assert taken.ending == "rule"
        assert 30 <= len(taken.calls) < 1000
        assert made.asked[:2] == [None, None]
        assert [place for place in made.asked if place is not None] == list(range(len(taken.calls)))
        assert made.batches[0] == (0, 10, False)
        ends = [first + count for first, count, _ in made.batches]
        assert ends[:-1] == [first for first, *_ in made.batches[1:]]  # without gaps

    def test_calls_that_do_not_count_follow_what_disturbs(self, course: Any) -> None:
        made, visited = course(), []

        def visit(place: int) -> bool:
            visited.append(place)
            return place in (3, 9)

        plan = adaptive(min_samples=10, max_samples=20)
        taken = made.take(plan, visit)
        assert visited == list(range(len(taken.calls)))
        settled = [place for place, asked in enumerate(made.asked) if asked is None]
        assert made.asked[2:9] == [0, 1, 2, 3, None, None, 4]
        assert settled == [0, 1, 6, 7, *range(14, 14 + len(settled) - 4)]

    def test_a_noisy_one_ends_at_the_limit(self, course: Any) -> None:
        taken = course("SAMPLES = [1.0, 9.0, 2.0, 30.0, 4.0, 0.5, 7.0]").take(adaptive())
        assert taken.ending == "max_samples"
        assert len(taken.calls) == 100

    def test_time_is_over_in_the_first_batch(self, course: Any) -> None:
        made = course("import time\ndef on_time(): time.sleep(0.05)")
        taken = made.take(adaptive(warmup=0, max_seconds=0.12))
        assert taken.ending == "max_seconds"
        # One more call follows, which may be looked at.
        assert made.batches == [(0, 10, False), (len(taken.calls) - 1, 1, True)]
        assert 2 <= len(taken.calls) < 10


def test_what_is_waited_for_costs_no_time_of_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 101.0, 900.0, 901.0])
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: next(now)))
    deadline = Deadline(10.0)
    with deadline.stopped():
        pass
    assert deadline.remaining() == 8.0

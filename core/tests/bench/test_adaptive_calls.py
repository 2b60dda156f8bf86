"""Timed calls whose number nobody knows beforehand: batches and time limits."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fib_tests.scripted import attempt_of
from flashinfer_bench.bench import calls
from flashinfer_bench.bench.calls import Deadline, Variations, take_calls
from flashinfer_bench.bench.stopping import StoppingRule, TimingPlan
from flashinfer_bench.tensors.vary import Freedom

ROTATES = (Freedom("rotate", 64, 128, True),)


class _Course:
    """Calls of a fake candidate by a plan, and what was asked meanwhile."""

    def __init__(self, executor: Any, problems: Any, session: Any, source: str) -> None:
        self._attempt = attempt_of(
            session(), executor, problems, source, [[torch.rand(300)]], ROTATES
        )
        self.asked: list[int | None] = []
        self.batches: list[tuple[int, int]] = []

    def take(self, plan: TimingPlan) -> Any:
        variations = Variations(self._attempt.baseline, random.Random(0))

        def variation_of(place: int | None) -> Any:
            self.asked.append(place)
            return variations.draw()

        return take_calls(
            self._attempt,
            plan,
            variation_of,
            begin=lambda first, count, closing: self.batches.append((first, count)),
        )


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
        assert made.batches[0] == (0, 10)
        ends = [first + count for first, count in made.batches]
        assert ends[:-1] == [first for first, _ in made.batches[1:]]  # without gaps

    def test_a_noisy_one_ends_at_the_limit(self, course: Any) -> None:
        taken = course("SAMPLES = [1.0, 9.0, 2.0, 30.0, 4.0, 0.5, 7.0]").take(adaptive())
        assert taken.ending == "max_samples"
        assert len(taken.calls) == 100

    def test_time_is_over_in_the_first_batch(self, course: Any) -> None:
        made = course("import time\ndef on_time(): time.sleep(0.05)")
        taken = made.take(adaptive(warmup=0, max_seconds=0.12))
        assert taken.ending == "max_seconds"
        # One more call follows, which may be looked at.
        assert made.batches == [(0, 10), (len(taken.calls) - 1, 1)]
        assert 2 <= len(taken.calls) < 10


def test_what_is_waited_for_costs_no_time_of_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 101.0, 900.0, 901.0])
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: next(now)))
    deadline = Deadline(10.0)
    with deadline.stopped():
        pass
    assert deadline.remaining() == 8.0

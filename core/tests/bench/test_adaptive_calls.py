"""Timed calls whose number nobody knows beforehand: batches, time limits, looks."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.judge import rounds
from flashinfer_bench.bench.judge.baseline import prepare_baseline
from flashinfer_bench.bench.judge.checks import secret_batch
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.evaluate import evaluate_solution
from flashinfer_bench.bench.judge.rounds import Variations, fixed_rounds, take_calls
from flashinfer_bench.bench.stopping.plan import TimingPlan
from flashinfer_bench.bench.stopping.rse import RelativeStandardError
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.data import Evaluation, EvaluationStatus
from flashinfer_bench.tensors.vary import Freedom

ROTATES = (Freedom("rotate", 64, 128, True),)


class _Course:
    """Calls of a fake candidate by a plan, and what was asked meanwhile."""

    def __init__(self, executor: Any, problems: Any, session: Any, source: str) -> None:
        self._candidate = executor.spawn()
        definition = problems.definition()
        solution = problems.solution(f"{source}\ndef run(x): return x")
        self._candidate.load(definition, solution, timeout_s=1.0)
        self._candidate.put_inputs(0, [torch.rand(300)], {}, ways=["rotate"], timeout_s=1.0)
        self._session = session()
        self.asked: list[int | None] = []
        self.batches: list[tuple[int, int]] = []

    def take(self, plan: TimingPlan) -> Any:
        variations = Variations(ROTATES, [[torch.rand(300)]], random.Random(0))

        def variation_of(place: int | None) -> Any:
            self.asked.append(place)
            return variations.draw()

        return take_calls(
            self._session,
            self._candidate,
            plan,
            Deadline(60.0),
            variation_of=variation_of,
            visit=lambda place: False,
            begin=lambda first, count, closing: self.batches.append((first, count)),
        )


@pytest.fixture
def course(executor: Any, problems: Any, session: Any) -> Any:
    return lambda source="SAMPLES = [2.0, 2.001]": _Course(executor, problems, session, source)


def adaptive(**changes: Any) -> TimingPlan:
    values = {"warmup": 2, "batch": 10, "min_samples": 30, "max_samples": 100}
    return TimingPlan(RelativeStandardError(), **{**values, **changes})


class TestWaiting:
    """How long others had the cores, as the system tells."""

    @pytest.fixture
    def waiting(self, course: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        def take(*times: dict[int, int], here: tuple[int, int] = (0, 0)) -> float:
            told, own = iter(times), iter(here)
            made = course()
            monkeypatch.setattr(
                type(made._candidate), "waiting_times", lambda self: next(told), raising=False
            )
            monkeypatch.setattr(rounds, "waited_here", lambda: next(own))
            return float(made.take(fixed_rounds(2, 1, 4)).waited_ms)

        return take

    def test_it_is_that_of_the_thread_that_waited_longest_in_each_exchange(
        self, waiting: Any
    ) -> None:
        before, after = {1: 5_000_000, 2: 0}, {1: 6_000_000, 2: 20_000_000}
        assert waiting(before, after) == 2.0  # two rounds of five
        assert waiting(before, after, here=(0, 10_000_000)) == 3.0

    def test_threads_that_are_new_have_waited_since_they_began(self, waiting: Any) -> None:
        assert waiting({1: 50_000_000}, {1: 50_000_000, 7: 10_000_000}) == 1.0

    def test_where_the_system_does_not_tell_nothing_is_known(self, waiting: Any) -> None:
        assert waiting({}, {}, here=(0, 10_000_000)) == 0.0

    def test_threads_that_are_gone_do_not_count(self, waiting: Any) -> None:
        assert waiting({1: 0, 2: 7}, {1: 10_000_000}) == 1.0


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
        began = time.monotonic()
        taken = made.take(adaptive(warmup=0, max_seconds=0.12))
        assert time.monotonic() - began < 5
        assert taken.ending == "max_seconds"
        # One more call follows, which may be looked at.
        assert made.batches == [(0, 10), (len(taken.calls) - 1, 1)]
        assert 2 <= len(taken.calls) < 10

    def test_at_least_one_call_is_timed(self, course: Any) -> None:
        taken = course().take(adaptive(max_seconds=0.0))
        assert taken.ending == "max_seconds"
        assert len(taken.calls) == 2

    def test_rounds_are_cut_as_well(self, course: Any) -> None:
        from dataclasses import replace

        plan = replace(fixed_rounds(3, 1, 50), max_seconds=0.1)
        taken = course("import time\ndef on_time(): time.sleep(0.02)").take(plan)
        assert taken.ending == "max_seconds"
        assert 2 <= len(taken.calls) < 150

    def test_a_later_round_that_is_cut_has_a_closing_call(self, course: Any) -> None:
        from dataclasses import replace

        plan = replace(fixed_rounds(50, 0, 2), max_seconds=0.2)
        made = course("import time\ndef on_time(): time.sleep(0.02)")
        taken = made.take(plan)
        assert taken.ending == "max_seconds"
        assert len(made.batches) > 2
        assert made.batches[-1] == (len(taken.calls) - 1, 1)

    def test_nan_ends_it(self, course: Any) -> None:
        taken = course("SAMPLES = [float('nan')]").take(adaptive())
        assert taken.ending == "impossible"
        assert len(taken.calls) == 10


class TestSecretBatch:
    @given(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 8), st.integers())
    def test_looks_lie_in_the_batch(self, first: int, count: int, left: int, seed: int) -> None:
        checks: list[Any] = [object() for _ in range(left)]
        schedule = secret_batch(first, count, checks, random.Random(seed))
        assert set(schedule) <= set(range(first, first + count))
        made = [check for check in schedule.values() if check is not None]
        assert len(made) == len({id(check) for check in made})
        assert all(any(check is one for one in checks) for check in made)
        assert bool(made) == bool(checks)
        assert schedule

    def test_every_place_has_the_same_chance(self) -> None:
        seen: Counter[int] = Counter()
        checks: list[Any] = [object() for _ in range(8)]
        for seed in range(4000):
            schedule = secret_batch(20, 10, checks, random.Random(seed))
            seen.update(place for place, check in schedule.items() if check is not None)
        assert set(seen) == set(range(20, 30))
        assert max(seen.values()) < 1.3 * min(seen.values())


@pytest.fixture
def judge(problems: Any, session: Any, settings: Any, evaluator: Any, executor: Any) -> Any:
    """Evaluate a solution, given as source, with a rule that adapts."""

    def run(source: str, **options: Any) -> Evaluation:
        given = {"stop_rule": "rse", "min_samples": 20, "max_samples": 40, "warmup_runs": 2}
        config = settings(**{**given, **options.pop("config", {})})
        definition = problems.definition(reference="def run(x): return x * 2\nSAMPLES = [2.0, 2.1]")
        running = session(**options)
        workload = problems.workload(n=200, uuid="w")
        made = prepare_baseline(
            running, definition, workload, reference_solution(definition), config, None, evaluator
        )
        executor.events.clear()
        return evaluate_solution(running, problems.solution(source), made, evaluator, made.config)

    return run


class TestEvaluation:
    def test_what_is_recorded(self, judge: Any) -> None:
        found = judge("def run(x): return x * 2\nSAMPLES = [2.0, 2.1]")
        assert found.status is EvaluationStatus.PASSED
        told = found.provenance
        assert told.stop_rule == "rse"
        assert told.timing["ended_by"] in ("rule", "max_samples")
        assert set(told.timing["parameters"]) == set(RelativeStandardError().values)
        assert 20 <= len(found.performance.samples_ms) <= 40
        note = found.correctness.extra["integrity"]
        assert note["timed_calls"] == len(found.performance.samples_ms)
        assert note["checked_calls"] >= 1

    @pytest.mark.parametrize("after", [3, 8])
    def test_wrong_after_some_calls(self, judge: Any, after: int) -> None:
        source = f"""
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= {after} else x * 3
SAMPLES = [2.0, 2.1]
"""
        found = judge(source)
        assert found.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert "integrity: outputs: timed call" in found.log

    def test_wrong_when_time_is_short(self, judge: Any) -> None:
        source = """
import time
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 4 else x * 3
def on_time(): time.sleep(0.03)
"""
        for _ in range(5):
            found = judge(source, config={"max_seconds": 0.1})
            assert found.status is EvaluationStatus.INCORRECT_NUMERICAL

    def test_wrong_in_rounds_when_time_is_short(self, judge: Any) -> None:
        source = """
import time
n = [0]
def run(x):
    n[0] += 1
    return x * 2 if n[0] <= 4 else x * 3
def on_time(): time.sleep(0.03)
"""
        rounds = {"stop_rule": "fixed", "iterations": 100, "min_samples": None, "max_samples": None}
        for _ in range(5):
            found = judge(source, config={**rounds, "max_seconds": 0.1})
            assert found.status is EvaluationStatus.INCORRECT_NUMERICAL

    def test_slow_ones_say_that_time_was_over(self, judge: Any) -> None:
        source = """
import time
def run(x): return x * 2
def on_time(): time.sleep(0.03)
SAMPLES = [2.0, 2.1]
"""
        found = judge(source, config={"max_seconds": 0.1})
        assert found.status is EvaluationStatus.PASSED
        assert "the time for timing was over after" in found.log
        assert found.provenance.timing["ended_by"] == "max_seconds"

    def test_warm_caches_are_asked_for(self, judge: Any, executor: Any) -> None:
        found = judge("def run(x): return x * 2\nSAMPLES = [2.0, 2.1]", config={"cache": "warm"})
        assert found.provenance.timing["cache"] == "warm"

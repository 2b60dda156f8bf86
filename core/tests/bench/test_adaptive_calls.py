"""Timed calls: their order, and batches and time limits where nobody knows their number."""

import time
from types import SimpleNamespace

import pytest
import torch

from fib_tests.scripted import attempt_of
from flashinfer_bench.bench.calls import measure, take_calls
from flashinfer_bench.bench.stopping import StoppingRule, TimingPlan
from flashinfer_bench.bench.transport.deadline import Deadline


class _Course:
    """Calls of a fake candidate by a plan, and what was asked meanwhile."""

    def __init__(self, executor, problems, session, source):
        self._attempt = attempt_of(session(), executor, problems, source, [[torch.rand(300)]])
        self.asked = []
        self.batches = []
        self.begin_s = 0.0

    def take(self, plan, visit=lambda place: False):
        def fire(places):
            self.asked.extend(places)
            return [self._attempt.fire(0) for _ in places]

        def begin(*batch):
            self.batches.append(batch)
            time.sleep(self.begin_s)

        return take_calls(self._attempt, plan, fire, visit=visit, begin=begin)


@pytest.fixture
def course(executor, problems, session):
    return lambda source="SAMPLES = [2.0, 2.001]": _Course(
        executor, problems, session, f"{source}\ndef run(x): return x"
    )


class _Quiet(StoppingRule):
    """Stop when all samples are alike."""

    def wants_more(self, samples_ms):
        return bool(max(samples_ms) > min(samples_ms) * 1.01)


def adaptive(**changes):
    values = {"warmup": 2, "batch": 10, "min_samples": 30, "max_samples": 100}
    return TimingPlan(_Quiet(), **{**values, **changes})


class TestBatches:
    def test_a_quiet_solution_needs_few(self, course):
        made = course()
        taken = made.take(adaptive(max_samples=1000))
        assert taken.ending == "rule"
        assert 30 <= len(taken.calls) < 1000
        assert made.asked[:2] == [None, None]
        assert [place for place in made.asked if place is not None] == list(range(len(taken.calls)))
        assert made.batches[0] == (0, 10)
        ends = [first + count for first, count in made.batches]
        assert ends[:-1] == [first for first, _ in made.batches[1:]]  # without gaps

    def test_calls_that_do_not_count_follow_what_disturbs(self, course):
        made, visited = course(), []

        def visit(place):
            visited.append(place)
            return place in (3, 9)

        plan = adaptive(min_samples=10, max_samples=20)
        taken = made.take(plan, visit)
        assert visited == list(range(len(taken.calls)))
        settled = [place for place, asked in enumerate(made.asked) if asked is None]
        assert made.asked[2:9] == [0, 1, 2, 3, None, None, 4]
        assert settled == [0, 1, 6, 7, *range(14, 14 + len(settled) - 4)]

    def test_a_noisy_one_ends_at_the_limit(self, course):
        taken = course("SAMPLES = [1.0, 9.0, 2.0, 30.0, 4.0, 0.5, 7.0]").take(adaptive())
        assert taken.ending == "max_samples"
        assert len(taken.calls) == 100

    def test_time_is_over_in_the_first_batch(self, course):
        made = course("import time\ndef on_time(): time.sleep(0.05)")
        taken = made.take(adaptive(warmup=0, max_seconds=0.12))
        assert taken.ending == "max_seconds"
        assert made.batches == [(0, 10)]
        assert 1 <= len(taken.calls) < 10

    def test_what_is_decided_before_a_batch_costs_no_time(self, course):
        made = course()
        made.begin_s = 0.7
        taken = made.take(adaptive(warmup=0, min_samples=10, max_samples=10, max_seconds=0.5))
        assert len(taken.calls) == 10


def test_what_is_waited_for_costs_no_time_of_a_deadline(monkeypatch):
    now = iter([100.0, 101.0, 900.0, 901.0])
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr("flashinfer_bench.bench.transport.deadline.time", clock)
    deadline = Deadline(10.0)
    with deadline.stopped():
        pass
    assert deadline.remaining == 8.0


def test_input_sets_take_turns_on_a_locked_device(executor, problems, session):
    source = """
        from flashinfer_bench.bench.locks import device_lock
        SAMPLES = [3.0]
        def run(x):
            with device_lock("cpu", lambda: True) as held:
                assert not held, "anybody could time now"
            SAMPLES[:] = [1.0 + x[0, 0].item()]
            return x
    """
    inputs = [[torch.full((4, 3), float(slot))] for slot in range(2)]
    attempt = attempt_of(session(), executor, problems, source, inputs)
    found = measure(attempt, TimingPlan.fixed(count=2, warmup=1, iterations=3))
    assert [slot for _, slot, _ in executor.of("fire")] == [0, 1] * 4
    # A warm-up comes first in each round.
    assert found.samples_ms == (2.0, 1.0, 2.0, 2.0, 1.0, 2.0)

"""Where timed calls are checked, how many are, and against what."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_judge import timed
from fib_judge.timed import (
    TimedCheck,
    number_of_checks,
    secret_places,
    secret_schedule,
)
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.tensors.vary import Freedom, draw_variation

ROTATES = (Freedom("rotate", 64, 128, True),)
PLENTY = 2**40


class TestNumber:
    @pytest.mark.parametrize(
        ("timed", "output_bytes", "free", "expected"),
        [
            (150, 4, PLENTY, 8),
            (20, 4, PLENTY, 5),
            (3, 4, PLENTY, 2),
            (1, 4, PLENTY, 1),
            (150, 2**20, 16 * 2**20, 4),  # a quarter of the free memory
            (150, 2**26, PLENTY, 4),  # 256 MiB
            (150, 2**30, PLENTY, 2),
            (150, 2**30, 0, 2),
            (150, 0, PLENTY, 8),
        ],
    )
    def test_each(self, timed, output_bytes, free, expected):
        assert number_of_checks(timed, output_bytes, free) == expected


class TestPlaces:
    @given(st.data(), st.integers(1, 400), st.integers(0, 2**32))
    def test_different_ones_with_one_in_the_last_tenth(self, data, timed, seed):
        count = data.draw(st.integers(1, min(8, timed)))
        places = secret_places(timed, count, random.Random(seed))
        assert len(set(places)) == count
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] < timed
        assert places[-1] >= timed - max(1, timed // 10)

    def test_one_says_nothing_about_the_next(self):
        """After a look the calls that follow are looked at as often as any others."""
        follows = looks = 0
        for seed in range(4000):
            places = set(secret_places(50, 8, random.Random(seed)))
            early = [place for place in places if place < 35]
            looks += len(early)
            follows += sum(place + 1 in places for place in early)
        # 6 or 7 others on 49 calls; one in each part would leave far fewer.
        assert follows / looks == pytest.approx(6.2 / 49, rel=0.1)


class TestSchedule:
    def checks(self, count):
        base = Trial(0, 1, [torch.arange(300.0)], [torch.zeros(1)])
        rng = random.Random(4)
        return [
            TimedCheck(draw_variation(ROTATES, base.inputs, 0, rng), ROTATES, base, base.expected)
            for _ in range(count)
        ]

    def test_decoys_are_none_to_as_many(self):
        checks = self.checks(4)
        numbers: Counter[int] = Counter()
        where: Counter[int] = Counter()
        for seed in range(2000):
            schedule = secret_schedule(60, checks, random.Random(seed))
            decoys = [place for place, check in schedule.items() if check is None]
            assert len(schedule) == 4 + len(decoys)
            numbers[len(decoys)] += 1
            where.update(decoys)
        assert set(numbers) == {0, 1, 2, 3, 4}
        assert min(numbers.values()) > 300
        assert set(where) == set(range(60))

    @pytest.mark.parametrize("rest", [1, 5, 20])
    def test_idling_after_each_look_does_not_pay(self, rest):
        """It is seen about as often as idling as many calls at random."""
        checks = self.checks(8)
        seen = at_random = 0
        for seed in range(300):
            rng = random.Random(seed)
            schedule = secret_schedule(50, checks, rng)
            idle, left = [], 0
            for place in range(50):
                idle.append(left > 0)
                left = rest if place in schedule else left - 1
            shuffled = rng.sample(idle, len(idle))
            compared = [place for place, check in schedule.items() if check is not None]
            seen += any(idle[place] for place in compared)
            at_random += any(shuffled[place] for place in compared)
        assert seen >= 0.75 * at_random

    def test_trial_is_what_the_call_saw(self):
        (check,) = self.checks(1)
        (patch,) = check.variation.patches
        expected = torch.roll(check.base.inputs[0], -check.variation.shifts[0])
        expected[patch.positions] = patch.values
        trial = check.trial
        assert torch.equal(trial.inputs[0], expected)
        assert (trial.index, trial.seed, trial.expected) == (0, 1, check.expected)


@pytest.mark.parametrize(("here", "expected"), [(0, 2.0), (10_000_000, 3.0)])
def test_how_long_others_had_the_cores(here, expected, monkeypatch):
    """It is that of the thread that waited longest, and the judge's own, for each exchange."""
    told = iter([{1: 5_000_000, 2: 0}, {1: 6_000_000, 2: 20_000_000}])
    own = iter([0, here])
    monkeypatch.setattr(timed, "waited_here", lambda: next(own))
    attempt = SimpleNamespace(
        baseline=SimpleNamespace(checks=()),
        plan=TimingPlan.fixed(2, 1, 4),
        candidate=SimpleNamespace(waiting_times=lambda: next(told)),
    )
    course = timed._Course(attempt, random.Random(0))
    monkeypatch.setattr(course, "_variations", SimpleNamespace(draw=lambda: None))
    course.begin(0, 4, False)
    for place in (None, 0, 1, 2, 3, None, 4, 5, 6, 7):  # two rounds of five
        course.variation_of(place)
    assert course.waited_ms() == expected

"""Where timed calls are checked, how many are, and against what."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.bench.judge.checks import (
    TimedCheck,
    free_memory,
    number_of_checks,
    secret_places,
    secret_schedule,
)
from flashinfer_bench.bench.judge.deadline import Deadline
from flashinfer_bench.bench.judge.rounds import (
    Taken,
    Variations,
    fixed_rounds,
    take_calls,
)
from flashinfer_bench.bench.judge.seeds import secret_seed
from flashinfer_bench.tensors.vary import Freedom, draw_variation

if TYPE_CHECKING:
    from flashinfer_bench.bench.stopping.plan import TimingPlan

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
    def test_each(self, timed: int, output_bytes: int, free: int, expected: int) -> None:
        assert number_of_checks(timed, output_bytes, free) == expected

    def test_free_memory(self) -> None:
        assert free_memory() > 2**20


class TestPlaces:
    @given(st.data(), st.integers(1, 400), st.integers(0, 2**32))
    def test_different_ones_with_one_in_the_last_tenth(
        self, data: st.DataObject, timed: int, seed: int
    ) -> None:
        count = data.draw(st.integers(1, min(8, timed)))
        places = secret_places(timed, count, random.Random(seed))
        assert len(set(places)) == count
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] < timed
        assert places[-1] >= timed - max(1, timed // 10)

    def test_every_call_may_be_one_of_them(self) -> None:
        seen: Counter[int] = Counter()
        for seed in range(3000):
            seen.update(secret_places(40, 8, random.Random(seed)))
        assert set(seen) == set(range(40))
        assert min(seen.values()) > 400

    def test_one_says_nothing_about_the_next(self) -> None:
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
    def checks(self, count: int) -> list[TimedCheck]:
        base = Trial(0, 1, [torch.arange(300.0)], [torch.zeros(1)])
        rng = random.Random(4)
        return [
            TimedCheck(draw_variation(ROTATES, base.inputs, 0, rng), ROTATES, base, base.expected)
            for _ in range(count)
        ]

    def test_each_check_comes_once_in_any_order(self) -> None:
        checks = self.checks(4)
        orders = set()
        for seed in range(50):
            schedule = secret_schedule(60, checks, random.Random(seed))
            found = [schedule[place] for place in sorted(schedule)]
            order = tuple(number for item in found for number in self.number_of(item, checks))
            assert sorted(order) == [0, 1, 2, 3]
            orders.add(order)
        assert len(orders) > 10

    @staticmethod
    def number_of(item: TimedCheck | None, checks: list[TimedCheck]) -> list[int]:
        return [number for number, check in enumerate(checks) if check is item]

    def test_decoys_are_none_to_as_many(self) -> None:
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
    def test_idling_after_each_look_does_not_pay(self, rest: int) -> None:
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

    def test_fewer_calls_than_checks(self) -> None:
        assert len(secret_schedule(3, self.checks(5), random.Random(0))) == 3
        assert secret_schedule(3, [], random.Random(0)) == {}

    def test_trial_is_what_the_call_saw(self) -> None:
        (check,) = self.checks(1)
        (patch,) = check.variation.patches
        expected = torch.roll(check.base.inputs[0], -check.variation.shifts[0])
        expected[patch.positions] = patch.values
        trial = check.trial
        assert torch.equal(trial.inputs[0], expected)
        assert (trial.index, trial.seed, trial.expected) == (0, 1, check.expected)


class TestSecretSeed:
    def test_fresh_each_time(self) -> None:
        assert len({secret_seed(None, "a") for _ in range(20)}) == 20

    def test_follows_from_one_that_is_given(self) -> None:
        assert secret_seed(7, "a") == secret_seed(7, "a")
        assert len({secret_seed(7, "a"), secret_seed(8, "a"), secret_seed(7, "b")}) == 3
        assert 0 <= secret_seed(7, "a") < 2**53


class TestRounds:
    def test_variations_go_over_all_sets(self) -> None:
        inputs = [[torch.rand(300)], [torch.rand(300)], [torch.rand(300)]]
        variations = Variations(ROTATES, inputs, random.Random(0))
        drawn = [variations.draw() for _ in range(60)]
        assert {item.slot for item in drawn} == {0, 1, 2}
        assert len({tuple(item.patches[0].values.tolist()) for item in drawn}) > 50

    def test_calls(self, executor: Any, problems: Any, session: Any) -> None:
        made = _Made(executor, problems, session)
        calls = made.take(fixed_rounds(2, 1, 2), looked_at=()).calls
        assert made.asked == [None, 0, 1, None, 2, 3]
        assert made.visited == [0, 1, 2, 3]
        assert [call.sample_ms for call in calls] == [2.0, 3.0, 2.0, 3.0]
        assert [call.stage_ms for call in calls] == [4.0] * 4
        assert [call.overhead_ms for call in calls] == pytest.approx([0.1] * 4)
        assert [call.exchange_ms for call in calls] == pytest.approx([0.3] * 4)

    @pytest.mark.parametrize(
        ("rounds", "looked_at", "asked"),
        [
            (fixed_rounds(1, 2, 3), (0,), [None, None, 0, None, None, 1, 2]),
            (fixed_rounds(1, 1, 3), (0, 1), [None, 0, None, 1, None, 2]),
            (fixed_rounds(1, 0, 3), (0, 1), [0, 1, 2]),  # nobody waits for it to settle at all
            (
                fixed_rounds(1, 9, 2),
                (0, 1),
                [*[None] * 9, 0, None, None, 1],
            ),  # nothing is left to time
            (fixed_rounds(2, 2, 1), (0, 1), [None, None, 0, None, None, 1]),  # a warm-up follows
        ],
    )
    def test_what_follows_a_look_is_not_counted(
        self,
        executor: Any,
        problems: Any,
        session: Any,
        rounds: TimingPlan,
        looked_at: tuple[int, ...],
        asked: list[int | None],
    ) -> None:
        made = _Made(executor, problems, session)
        taken = made.take(rounds, looked_at)
        assert made.asked == asked
        assert made.visited == list(range(rounds.max_samples))
        assert len(taken.calls) == rounds.max_samples
        assert taken.ending == "rule"


class _Made:
    """Calls of a solution whose samples go round 1, 2 and 3, and what was asked meanwhile."""

    def __init__(self, executor: Any, problems: Any, session: Any) -> None:
        self._candidate = executor.spawn()
        source = "SAMPLES = [1.0, 2.0, 3.0]\nSTAGE_MS = 4\ndef run(x): return x"
        definition, solution = problems.definition(), problems.solution(source)
        self._candidate.load(definition, solution, timeout_s=1.0)
        self._candidate.put_inputs(0, [torch.rand(300)], {}, ways=["rotate"], timeout_s=1.0)
        self._session = session()
        self.asked: list[int | None] = []
        self.visited: list[int] = []

    def take(self, rounds: TimingPlan, looked_at: tuple[int, ...]) -> Taken:
        variations = Variations(ROTATES, [[torch.rand(300)]], random.Random(0))

        def variation_of(place: int | None) -> Any:
            self.asked.append(place)
            return variations.draw()

        def visit(place: int) -> bool:
            self.visited.append(place)
            return place in looked_at

        return take_calls(
            self._session,
            self._candidate,
            rounds,
            Deadline(9.0),
            variation_of=variation_of,
            visit=visit,
        )

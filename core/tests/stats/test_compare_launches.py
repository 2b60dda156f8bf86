"""Odd launches, sameness, and the order of calls."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.stats.compare import (
    LOOKS,
    Launch,
    Verdict,
    compare_launches,
    enough,
)
from flashinfer_bench.stats.comparison import Effect
from flashinfer_bench.stats.distributions import two_sided_p

sys.path.insert(0, str(Path(__file__).parent))
from launches import exact, launch, launches_until_enough


class TestOddLaunches:
    """False alarms where launches are far from normal: as differences of two alike processes."""

    @pytest.mark.parametrize(
        "draw",
        [
            pytest.param(lambda rng: 0.2 * (rng.random() < 0.5), id="two modes"),
            pytest.param(lambda rng: 0.2 * (rng.random() < 0.15), id="a rare slow mode"),
            pytest.param(lambda rng: 0.01 * rng.lognormvariate(0, 1.5), id="long tail"),
            pytest.param(lambda rng: rng.gauss(0, 0.02), id="normal"),
        ],
    )
    def test_false_alarms(self, draw) -> None:
        rng, alarms = random.Random(51), 0
        for _ in range(300):
            taken: list[Launch] = []
            while not enough(taken):
                log = draw(rng) - draw(rng) + rng.gauss(0, 0.003)
                taken += exact(math.exp(log))
            verdict = compare_launches(taken).verdict
            alarms += verdict in (Verdict.SLOWER, Verdict.FASTER)
        assert alarms / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


class TestTheSame:
    """Two one-sided tests: how sure it is that a difference is less than what matters."""

    @given(
        st.floats(-0.05, 0.05), st.floats(1e-4, 0.05), st.floats(1, 30), st.sampled_from([1.0, 0.2])
    )
    def test_is_an_interval_with_twice_the_chance_to_miss(self, log, error, freedom, spent) -> None:
        effect = Effect(log, error, freedom)
        narrow = effect.interval(2 * 0.05, spent)
        inside = narrow.low >= 1 / 1.01 and narrow.high <= 1.01
        p_same = effect.p_same(0.01, spent)
        assert (p_same <= 0.05) == inside or p_same == pytest.approx(0.05, abs=1e-6)

    def test_by_hand(self) -> None:
        effect = Effect(0.002, 0.003, 9.0)
        statistic = (math.log(1.01) - 0.002) / 0.003
        assert effect.p_same(0.01) == pytest.approx(two_sided_p(statistic, 9.0) / 2)
        assert effect.p_same(0.01, 1 / 6) == pytest.approx(3 * two_sided_p(statistic, 9.0))

    def test_ends(self) -> None:
        assert Effect(0.0, math.inf, 1.0).p_same(0.01) == 1.0
        assert Effect(0.02, 0.001, 5.0).p_same(0.01) == 1.0
        assert Effect(0.0, 0.0, 5.0).p_same(0.01) == 0.0
        assert Effect(0.02, 0.0, 5.0).p_same(0.01) == 1.0

    @given(st.floats(-0.05, 0.05), st.floats(1e-4, 0.05), st.floats(1, 30))
    def test_sides_are_alike(self, log, error, freedom) -> None:
        there, back = (Effect(sign * log, error, freedom).p_same(0.01) for sign in (1, -1))
        assert there == back

    @pytest.mark.parametrize("between", [0.003, 0.01])
    def test_what_differs_by_as_much_as_matters_is_seldom_the_same(self, between) -> None:
        """By that test; what is significant and seems to be less is another matter."""
        rng = random.Random(31)
        count = 0
        for _ in range(300):
            taken: list[Launch] = []
            while len(taken) < LOOKS[-1]:
                taken.append(launch(rng, 0.01, between))
                if len(taken) in LOOKS and compare_launches(taken).p_same <= 0.05:
                    count += 1
                    break
        assert count / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)

    def test_alike_is_found(self) -> None:
        rng = random.Random(32)
        found = [launches_until_enough(rng, 0.0, 0.005).verdict for _ in range(50)]
        assert found.count(Verdict.SAME) >= 47

    def test_more_tests_need_no_more_for_it(self) -> None:
        ratios = (0.9995, 1.0005, 0.9992, 1.0008)
        assert enough(exact(*ratios))
        assert enough(exact(*ratios), tests=50)


class TestOrder:
    """What coming second costs is not the candidate's, even where it is more than the noise."""

    @staticmethod
    def launch(rng: random.Random, order: float, effect: float, number: int) -> Launch:
        logs, first = [], bool(number % 2)
        for place in range(24):
            disturbed = rng.choice((-0.3, 0.3)) if rng.random() < 0.2 else 0.0
            sign = -1 if bool(place % 2) != first else 1
            logs.append(effect + sign * order + rng.gauss(0, 0.01) + disturbed)
        return Launch((1.0,) * 24, tuple(map(math.exp, logs)), first)

    @pytest.mark.parametrize("order", [0.0, 0.01, 0.1, -0.5])
    def test_it_is_taken_out(self, order) -> None:
        rng = random.Random(41)
        found = compare_launches([self.launch(rng, order, 0.03, n) for n in range(24)])
        assert math.log(found.ratio.estimate) == pytest.approx(0.03, abs=4e-3)
        assert found.error < 2e-3

    @settings(max_examples=25)
    @given(st.integers(0, 10**6), st.floats(-0.2, 0.2))
    def test_sides_are_alike(self, seed, order) -> None:
        rng = random.Random(seed)
        there = [self.launch(rng, order, 0.0, n) for n in range(4)]
        back = [Launch(one.candidate, one.baseline, not one.candidate_first) for one in there]
        first, second = compare_launches(there), compare_launches(back)
        assert second.ratio.estimate == pytest.approx(1 / first.ratio.estimate)
        assert second.p_value == pytest.approx(first.p_value)

    def test_disturbed_pairs_count_less_than_disturbed_blocks_would(self) -> None:
        """A fifth of the pairs are disturbed, and so more than a third of the blocks of two."""
        rng = random.Random(42)
        taken = [self.launch(rng, 0.0, 0.0, n) for n in range(24)]
        blocks = []
        for one in taken:
            pairs = zip(one.candidate[::2], one.candidate[1::2], strict=True)
            blocks.append(Launch((1.0,) * 12, tuple(math.sqrt(a * b) for a, b in pairs)))
        assert compare_launches(taken).error < compare_launches(blocks).error

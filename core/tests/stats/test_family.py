from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.compare import (
    Comparison,
    Launch,
    Verdict,
    compare_launches,
    compare_unpaired,
    holm,
    overall,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=7)


def comparison(rng: random.Random, effect: float, launches: int = 8, spread: float = 0.005):
    shifts = [math.log1p(effect) + rng.gauss(0, spread) for _ in range(launches)]
    return compare_launches([Launch((1.0,) * 2, (math.exp(shift),) * 2) for shift in shifts])


class TestHolm:
    def test_from_a_textbook(self) -> None:
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))

    def test_nothing(self) -> None:
        assert holm([]) == ()

    @given(P_VALUES)
    def test_between_the_raw_and_bonferroni(self, p_values) -> None:
        for raw, adjusted in zip(p_values, holm(p_values), strict=True):
            assert raw <= adjusted <= min(1.0, len(p_values) * raw) + 1e-15

    @given(P_VALUES, st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, p_values, rng) -> None:
        places = list(range(len(p_values)))
        rng.shuffle(places)
        shuffled = holm([p_values[place] for place in places])
        assert sorted(shuffled) == sorted(holm(p_values))

    @given(P_VALUES, st.sampled_from([0.01, 0.05, 0.3]))
    def test_is_closed_testing_with_bonferroni(self, p_values, alpha) -> None:
        """Rejects exactly what is rejected by Bonferroni in each set of tests that it is in."""
        every = range(len(p_values))
        families = [
            family for size in range(1, len(p_values) + 1) for family in combinations(every, size)
        ]
        for index, adjusted in enumerate(holm(p_values)):
            mine = [family for family in families if index in family]
            lowest = [len(family) * min(p_values[i] for i in family) for family in mine]
            assert adjusted == pytest.approx(min(1.0, max(lowest)))

    @pytest.mark.parametrize("bad", [-0.1, 1.5, math.nan])
    def test_no_p_value(self, bad) -> None:
        with pytest.raises(DataError, match=r"p_values\[1\]"):
            holm([0.5, bad])


class TestOverall:
    def test_one_is_itself(self) -> None:
        one = comparison(random.Random(1), 0.05)
        found = overall([one])
        assert (found.ratio, found.p_value, found.verdict) == (one.ratio, one.p_value, one.verdict)
        assert found.comparisons == (one,)

    def test_geometric_mean(self) -> None:
        rng = random.Random(2)
        several = [comparison(rng, effect) for effect in (0.5, -0.5, 0.1)]
        product = math.prod(each.ratio.estimate for each in several)
        assert overall(several).ratio.estimate == pytest.approx(product ** (1 / 3))

    def test_the_mean_is_known_better_than_its_parts(self) -> None:
        rng = random.Random(3)
        several = [comparison(rng, 0.0) for _ in range(10)]
        widths = [each.ratio.half_width for each in several]
        assert overall(several).ratio.half_width < 0.5 * sum(widths) / len(widths)

    def test_many_small_slowdowns_are_one_clear_one(self) -> None:
        rng = random.Random(4)
        several = [comparison(rng, 0.02, launches=4, spread=0.02) for _ in range(30)]
        assert overall(several).verdict is Verdict.SLOWER

    def test_verdicts_allow_for_the_number(self) -> None:
        rng = random.Random(5)
        one = comparison(rng, 0.03, launches=4, spread=0.006)
        assert one.verdict is Verdict.SLOWER
        judged = overall([one, *(comparison(rng, 0.0, spread=0.02) for _ in range(40))])
        assert judged.comparisons[0].p_value > one.p_value
        assert judged.comparisons[0].verdict is Verdict.AMBIGUOUS

    def test_family_of_a_sample_program(self) -> None:
        """No alarm at all in 95 % of families that hold nothing."""
        rng = random.Random(6)
        alarms = 0
        for _ in range(150):
            judged = overall([comparison(rng, 0.0, spread=0.05) for _ in range(6)])
            found = [judged.verdict, *(each.verdict for each in judged.comparisons)]
            alarms += any(each in (Verdict.SLOWER, Verdict.FASTER) for each in found)
        assert alarms / 150 <= 0.09

    def test_worst(self) -> None:
        rng = random.Random(7)
        fast, slow = comparison(rng, -0.2), comparison(rng, 0.2)
        assert overall([fast]).worst is Verdict.FASTER
        assert overall([fast, slow]).worst is Verdict.SLOWER
        assert overall([fast, comparison(rng, 0, spread=0.1)]).worst is Verdict.AMBIGUOUS

    def test_one_that_is_not_known_at_all(self) -> None:
        rng = random.Random(8)
        unknown = compare_launches([Launch((1.0,), (2.0,))])
        judged = overall([comparison(rng, 0.5), unknown])
        assert (judged.ratio.low, judged.ratio.high) == (0.0, math.inf)
        assert judged.verdict is Verdict.AMBIGUOUS
        assert judged.comparisons[0].verdict is Verdict.SLOWER

    def test_without_noise(self) -> None:
        same = compare_launches([Launch((1.0,), (1.0,))] * 4)
        assert overall([same, same]).verdict is Verdict.SAME
        slow = compare_launches([Launch((1.0,), (2.0,))] * 4)
        assert overall([slow, slow]).verdict is Verdict.SLOWER

    def test_paired_and_unpaired_together(self) -> None:
        rng = random.Random(9)
        runs = [[rng.lognormvariate(0, 0.01) for _ in range(50)] for _ in range(2)]
        judged = overall([comparison(rng, 0.0), compare_unpaired(*runs)])
        assert [each.paired for each in judged.comparisons] == [True, False]
        assert isinstance(judged.comparisons[1], Comparison)

    def test_nothing(self) -> None:
        with pytest.raises(DataError, match="no comparisons"):
            overall([])

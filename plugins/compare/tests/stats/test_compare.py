import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.stats import (
    LOOKS,
    Effect,
    Launch,
    Verdict,
    compare_launches,
    compare_unpaired,
    decide,
    enough,
    holm,
    overall,
)
from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.distributions import t_quantile, two_sided_p
from flashinfer_bench.stats.intervals import Interval

ALARMS = (Verdict.SLOWER, Verdict.FASTER)


def launch(rng, effect=0.0, between=0.005, pairs=8):
    """One pair of processes; `between` is how far they differ from others of their kind."""
    shift = math.log1p(effect) + rng.gauss(0, between)
    baseline, candidate = [], []
    for _ in range(pairs):
        level = rng.gauss(0, 0.02)
        baseline.append(5 * math.exp(level + rng.gauss(0, 0.005)))
        candidate.append(5 * math.exp(level + shift + rng.gauss(0, 0.005)))
    return Launch(tuple(baseline), tuple(candidate))


def exact(*ratios):
    """Launches without noise inside."""
    return [Launch((10.0,) * 4, (10.0 * ratio,) * 4) for ratio in ratios]


def until_enough(draw, cap=24):
    """Compare launches that `draw` makes, until no more are needed."""
    taken = []
    while len(taken) < cap:
        taken.append(draw())
        if enough(taken):
            return compare_launches(taken)
    return compare_launches(taken, capped=True)


def rare(bound, count):
    """Return the largest share of events of this probability that is still likely."""
    return bound + 3 * math.sqrt(bound * (1 - bound) / count)


class TestCompareLaunches:
    def test_by_hand(self):
        """Student's t of four log ratios, at a sixth of alpha, for one of six looks."""
        ratios = [1.04, 1.05, 1.06, 1.05]
        found = compare_launches(exact(*ratios))
        logs = [math.log(ratio) for ratio in ratios]
        mean = sum(logs) / 4
        error = math.sqrt(sum((x - mean) ** 2 for x in logs) / 3 / 4)
        reach = t_quantile(1 - 0.05 / 6, 3) * error
        assert found.ratio.estimate == pytest.approx(math.exp(mean))
        assert found.ratio.low == pytest.approx(math.exp(mean - reach))
        assert found.ratio.high == pytest.approx(math.exp(mean + reach))
        assert found.p_value == pytest.approx(6 * two_sided_p(mean / error, 3))
        assert (found.launches, found.pairs) == (4, 16)
        assert found.verdict is Verdict.SLOWER

    @given(st.integers(0, 10**6), st.integers(2, 24), st.sampled_from([0.0, 0.03, -0.2]))
    def test_interval_and_p_value_agree(self, seed, count, effect):
        rng = random.Random(seed)
        found = compare_launches([launch(rng, effect) for _ in range(count)])
        assert (not found.ratio.low <= 1.0 <= found.ratio.high) == (found.p_value < 0.05)
        assert 0 <= found.p_value <= 1

    def test_one_disturbed_launch_of_eight_is_left_out(self):
        ratios = [1.05, 1.051, 1.049, 1.05, 1.052, 1.048, 1.05, 9.0]
        found = compare_launches(exact(*ratios))
        assert found.ratio.estimate == pytest.approx(1.05, abs=0.002)
        assert found.verdict is Verdict.SLOWER
        assert found.effect.freedom == 5

    def test_one_launch_gives_no_verdict(self):
        found = compare_launches(exact(2.0))
        assert found.ratio == Interval(2.0, 0.0, math.inf, 0.95)
        assert (found.p_value, found.verdict) == (1.0, Verdict.AMBIGUOUS)

    def test_all_looks_spend_alpha_once(self):
        rng = random.Random(2)
        for last in range(1, 30):
            taken = [launch(rng) for _ in range(last)]
            earlier = sum(look < last for look in LOOKS[:-1]) / len(LOOKS)
            assert earlier + compare_launches(taken, capped=True).spent == pytest.approx(1.0)
            assert compare_launches(taken).spent == pytest.approx(1 / 6)

    @pytest.mark.parametrize(
        ("launches", "message"),
        [
            ([], "no launches"),
            ([Launch((1.0,), (1.0, 2.0))], r"launches\[0\] has 1 baseline and 2 candidate"),
            ([Launch((), ())], r"launches\[0\]\.baseline: no samples"),
            ([Launch((1.0,), (math.nan,))], r"launches\[0\]\.candidate\[0\] is nan"),
            (
                [Launch((1.0,), (1.0,)), Launch((0.0,), (1.0,))],
                r"launches\[1\]\.baseline\[0\] is 0",
            ),
        ],
    )
    def test_bad_input(self, launches, message):
        with pytest.raises(DataError, match=message):
            compare_launches(launches)


class TestSequence:
    """What is promised of a run that looks again and again."""

    @pytest.mark.parametrize(("between", "cap"), [(0.003, 24), (0.02, 24), (0.02, 5), (0.02, 10)])
    def test_false_alarms(self, between, cap):
        rng = random.Random(21)
        found = [until_enough(lambda: launch(rng, 0.0, between), cap) for _ in range(250)]
        assert sum(one.verdict in ALARMS for one in found) / 250 <= 0.09

    @pytest.mark.parametrize(
        "draw",
        [
            pytest.param(lambda rng: 0.2 * (rng.random() < 0.5), id="two modes"),
            pytest.param(lambda rng: 0.2 * (rng.random() < 0.15), id="a rare slow mode"),
            pytest.param(lambda rng: 0.01 * rng.lognormvariate(0, 1.5), id="long tail"),
        ],
    )
    def test_false_alarms_where_launches_are_far_from_normal(self, draw):
        """As differences of two alike processes."""
        rng = random.Random(51)

        def odd():
            return exact(math.exp(draw(rng) - draw(rng) + rng.gauss(0, 0.003)))[0]

        found = [until_enough(odd) for _ in range(300)]
        assert sum(one.verdict in ALARMS for one in found) / 300 <= rare(0.05, 300)

    @pytest.mark.parametrize(
        ("effect", "between", "verdict", "least"),
        [
            (0.05, 0.015, Verdict.SLOWER, 90),
            (0.10, 0.015, Verdict.SLOWER, 99),
            (-0.05, 0.01, Verdict.FASTER, 96),
            (0.0, 0.005, Verdict.SAME, 94),
        ],
    )
    def test_what_is_so_is_found(self, effect, between, verdict, least):
        rng = random.Random(23)
        found = [until_enough(lambda: launch(rng, effect, between)).verdict for _ in range(100)]
        assert found.count(verdict) >= least


class TestEnough:
    def test_looks_only_when_planned(self):
        clear = exact(*[1.5] * 24)
        looked = [count for count in range(1, 24) if enough(clear[:count])]
        assert looked == list(LOOKS[:-1])

    def test_more_tests_need_more(self):
        ratios = (1.018, 1.03, 1.04, 1.03)
        assert enough(exact(*ratios))
        assert not enough(exact(*ratios), tests=50)


@pytest.mark.parametrize(
    ("estimate", "p_value", "p_same", "verdict"),
    [
        (1.05, 0.001, 1.0, Verdict.SLOWER),
        (0.95, 0.001, 1.0, Verdict.FASTER),
        (1.005, 0.01, 0.2, Verdict.SAME),  # real, and too little to matter
        (1.0, 0.9, 0.05, Verdict.SAME),
        (1.0, 0.9, 0.051, Verdict.AMBIGUOUS),
        (1.5, 0.2, 1.0, Verdict.AMBIGUOUS),
        (1.05, 0.051, 1.0, Verdict.AMBIGUOUS),
        (1.05, 0.05, 1.0, Verdict.SLOWER),
    ],
)
def test_verdicts(estimate, p_value, p_same, verdict):
    assert decide(estimate, p_value, p_same, min_effect=0.01, alpha=0.05) is verdict


class TestUnpaired:
    @staticmethod
    def run(seed, level, count=50):
        rng = random.Random(seed)
        return [level * math.exp(rng.gauss(0, 0.02)) for _ in range(count)]

    def test_clear(self):
        slower = compare_unpaired(self.run(1, 5.0), self.run(2, 5.5))
        assert (slower.verdict, slower.pairs) == (Verdict.SLOWER, 0)
        assert slower.ratio.estimate == pytest.approx(1.1, abs=0.02)
        assert compare_unpaired(self.run(2, 5.5), self.run(1, 5.0)).verdict is Verdict.FASTER

    def test_what_processes_differ_by_is_allowed_for(self):
        """2 % are nothing between two processes, though each has a median known to 0.2 %."""
        sides = self.run(1, 5.0, 2000), self.run(2, 5.1, 2000)
        assert compare_unpaired(*sides).verdict is Verdict.AMBIGUOUS


class TestTheSame:
    """Two one-sided tests: how sure it is that a difference is less than what matters."""

    @given(
        st.floats(-0.05, 0.05), st.floats(1e-4, 0.05), st.floats(1, 30), st.sampled_from([1.0, 0.2])
    )
    def test_is_an_interval_with_twice_the_chance_to_miss(self, log, error, freedom, spent):
        effect = Effect(log, error, freedom)
        narrow = effect.interval(2 * 0.05, spent)
        inside = narrow.low >= 1 / 1.01 and narrow.high <= 1.01
        p_same = effect.p_same(0.01, spent)
        assert (p_same <= 0.05) == inside or p_same == pytest.approx(0.05, abs=1e-6)

    @pytest.mark.parametrize("between", [0.003, 0.01])
    def test_what_differs_by_as_much_as_matters_is_seldom_the_same(self, between):
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
        assert count / 300 <= rare(0.05, 300)


class TestOrder:
    """What coming second costs is not the candidate's, even where it is more than the noise."""

    @staticmethod
    def launch(rng, order, effect, number):
        logs, first = [], bool(number % 2)
        for place in range(24):
            disturbed = rng.choice((-0.3, 0.3)) if rng.random() < 0.2 else 0.0
            sign = -1 if bool(place % 2) != first else 1
            logs.append(effect + sign * order + rng.gauss(0, 0.01) + disturbed)
        return Launch((1.0,) * 24, tuple(map(math.exp, logs)), first)

    @pytest.mark.parametrize("order", [0.0, 0.01, 0.1, -0.5])
    def test_it_is_taken_out(self, order):
        rng = random.Random(41)
        found = compare_launches([self.launch(rng, order, 0.03, n) for n in range(24)])
        assert math.log(found.ratio.estimate) == pytest.approx(0.03, abs=4e-3)
        assert found.effect.error < 2e-3

    @given(st.integers(0, 10**6), st.floats(-0.2, 0.2))
    def test_sides_are_alike(self, seed, order):
        rng = random.Random(seed)
        there = [self.launch(rng, order, 0.0, n) for n in range(4)]
        back = [Launch(one.candidate, one.baseline, not one.candidate_first) for one in there]
        first, second = compare_launches(there), compare_launches(back)
        assert second.ratio.estimate == pytest.approx(1 / first.ratio.estimate)
        assert second.p_value == pytest.approx(first.p_value)


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=7)


def comparison(rng, effect, launches=8, spread=0.005):
    shifts = [math.log1p(effect) + rng.gauss(0, spread) for _ in range(launches)]
    return compare_launches([Launch((1.0,) * 2, (math.exp(shift),) * 2) for shift in shifts])


class TestHolm:
    @given(P_VALUES, st.sampled_from([0.01, 0.05, 0.3]))
    def test_is_closed_testing_with_bonferroni(self, p_values, alpha):
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
    def test_no_p_value(self, bad):
        with pytest.raises(DataError, match=r"p_values\[1\]"):
            holm([0.5, bad])


class TestOverall:
    def test_many_small_slowdowns_are_one_clear_one(self):
        rng = random.Random(4)
        several = [comparison(rng, 0.02, launches=4, spread=0.02) for _ in range(30)]
        assert overall(several).verdict is Verdict.SLOWER

    def test_verdicts_allow_for_the_number(self):
        rng = random.Random(5)
        one = comparison(rng, 0.03, launches=4, spread=0.006)
        assert one.verdict is Verdict.SLOWER
        judged = overall([one, *(comparison(rng, 0.0, spread=0.02) for _ in range(40))])
        assert judged.comparisons[0].p_value > one.p_value
        assert judged.comparisons[0].verdict is Verdict.AMBIGUOUS

    def test_family_of_a_sample_program(self):
        """No alarm at all in 95 % of families that hold nothing."""
        rng = random.Random(6)
        alarms = 0
        for _ in range(150):
            judged = overall([comparison(rng, 0.0, spread=0.05) for _ in range(6)])
            found = [judged.verdict, *(each.verdict for each in judged.comparisons)]
            alarms += any(each in ALARMS for each in found)
        assert alarms / 150 <= 0.09

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.compare import (
    LOOKS,
    Launch,
    Verdict,
    compare_launches,
    compare_unpaired,
    decide,
    enough,
)
from flashinfer_bench.stats.distributions import t_quantile, two_sided_p
from flashinfer_bench.stats.intervals import Interval

sys.path.insert(0, str(Path(__file__).parent))
from launches import exact, launch, launches_until_enough


class TestCompareLaunches:
    def test_by_hand(self) -> None:
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
        assert (found.launches, found.pairs, found.paired) == (4, 16, True)
        assert found.verdict is Verdict.SLOWER

    @settings(max_examples=25)
    @given(st.integers(0, 10**6), st.integers(2, 24), st.sampled_from([0.0, 0.03, -0.2]))
    def test_interval_and_p_value_agree(self, seed, count, effect) -> None:
        rng = random.Random(seed)
        found = compare_launches([launch(rng, effect) for _ in range(count)])
        assert found.ratio.excludes(1.0) == (found.p_value < 0.05)
        assert 0 <= found.p_value <= 1

    @settings(max_examples=25)
    @given(st.integers(0, 10**6), st.integers(2, 12))
    def test_sides_are_alike(self, seed, count) -> None:
        rng = random.Random(seed)
        there = [launch(rng, 0.03) for _ in range(count)]
        back = [Launch(each.candidate, each.baseline) for each in there]
        one, other = compare_launches(there), compare_launches(back)
        assert other.ratio.estimate == pytest.approx(1 / one.ratio.estimate)
        assert other.p_value == pytest.approx(one.p_value)

    def test_a_shared_drift_does_not_count(self) -> None:
        rng = random.Random(1)
        drifted = []
        for number in range(8):
            one = launch(rng, 0.05)
            grown = [(1 + number) * (1 + 0.1 * i) for i in range(8)]
            drifted.append(
                Launch(
                    tuple(a * b for a, b in zip(one.baseline, grown, strict=True)),
                    tuple(a * b for a, b in zip(one.candidate, grown, strict=True)),
                )
            )
        assert compare_launches(drifted).ratio.estimate == pytest.approx(1.05, abs=0.01)

    def test_who_comes_second_does_not_count(self) -> None:
        """ABBA: in every other pair the candidate is the later one, which is 10 % slower here."""
        baseline, candidate = (10.0, 11.0) * 4, (11.0, 10.0) * 4
        found = compare_launches([Launch(baseline, candidate)] * 4)
        assert found.ratio.estimate == pytest.approx(1.0)

    def test_one_disturbed_call_does_not_count(self) -> None:
        disturbed = Launch((10.0,) * 8, (10.0,) * 7 + (500.0,))
        assert compare_launches([disturbed] * 4).ratio.estimate == 1.0

    def test_one_disturbed_launch_of_eight_is_left_out(self) -> None:
        ratios = [1.05, 1.051, 1.049, 1.05, 1.052, 1.048, 1.05, 9.0]
        found = compare_launches(exact(*ratios))
        assert found.ratio.estimate == pytest.approx(1.05, abs=0.002)
        assert found.verdict is Verdict.SLOWER
        assert found.freedom == 5

    def test_more_calls_do_not_replace_launches(self) -> None:
        """Calls of one process share what the process is like."""
        few = [launch(random.Random(seed), 0, 0.05, pairs=10) for seed in range(4)]
        many = [launch(random.Random(seed), 0, 0.05, pairs=1000) for seed in range(4)]
        narrow, wide = compare_launches(many).error, compare_launches(few).error
        assert narrow > 0.5 * wide

    def test_one_launch_gives_no_verdict(self) -> None:
        found = compare_launches(exact(2.0))
        assert found.ratio == Interval(2.0, 0.0, math.inf, 0.95)
        assert (found.p_value, found.verdict) == (1.0, Verdict.AMBIGUOUS)

    def test_without_any_noise(self) -> None:
        assert compare_launches(exact(*[1.0] * 4)).verdict is Verdict.SAME
        assert compare_launches(exact(*[1.5] * 4)).verdict is Verdict.SLOWER
        assert compare_launches(exact(*[0.5] * 4)).verdict is Verdict.FASTER

    def test_the_last_look_of_a_capped_run_spends_the_rest(self) -> None:
        rng = random.Random(2)
        taken = [launch(rng) for _ in range(10)]
        assert compare_launches(taken).spent == pytest.approx(1 / 6)
        assert compare_launches(taken, capped=True).spent == pytest.approx(4 / 6)
        assert compare_launches(taken[:3], capped=True).spent == 1.0
        assert compare_launches([taken[0]] * 24).spent == pytest.approx(1 / 6)
        assert compare_launches([taken[0]] * 30, capped=True).spent == pytest.approx(1 / 6)

    def test_all_looks_spend_alpha_once(self) -> None:
        rng = random.Random(2)
        for last in range(1, 30):
            taken = [launch(rng) for _ in range(last)]
            earlier = sum(look < last for look in LOOKS[:-1]) / len(LOOKS)
            assert earlier + compare_launches(taken, capped=True).spent == pytest.approx(1.0)

    def test_odd_number_of_pairs(self) -> None:
        assert compare_launches([Launch((1.0,), (2.0,))]).ratio.estimate == pytest.approx(2.0)
        three = Launch((1.0, 1.0, 1.0), (2.0, 2.0, 9.0))
        assert compare_launches([three]).ratio.estimate == pytest.approx(2.0)

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
    def test_bad_input(self, launches, message) -> None:
        with pytest.raises(DataError, match=message):
            compare_launches(launches)


class TestSequence:
    """What is promised of a run that looks again and again."""

    @pytest.mark.parametrize("between", [0.003, 0.02])
    def test_false_alarms(self, between) -> None:
        rng = random.Random(21)
        verdicts = [launches_until_enough(rng, 0.0, between).verdict for _ in range(250)]
        alarms = sum(each in (Verdict.SLOWER, Verdict.FASTER) for each in verdicts)
        assert alarms / len(verdicts) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(verdicts))
        assert alarms / len(verdicts) <= 0.08

    @pytest.mark.parametrize("cap", [5, 10])
    def test_false_alarms_of_capped_runs(self, cap) -> None:
        rng = random.Random(22)
        verdicts = [launches_until_enough(rng, 0.0, 0.02, cap).verdict for _ in range(250)]
        alarms = sum(each in (Verdict.SLOWER, Verdict.FASTER) for each in verdicts)
        assert alarms / len(verdicts) <= 0.09

    @pytest.mark.parametrize(("effect", "least"), [(0.05, 0.9), (0.10, 0.99)])
    def test_slowdowns_are_found(self, effect, least) -> None:
        rng = random.Random(23)
        found = [launches_until_enough(rng, effect, 0.015) for _ in range(100)]
        assert sum(each.verdict is Verdict.SLOWER for each in found) / len(found) >= least

    def test_speed_ups_are_found(self) -> None:
        rng = random.Random(24)
        found = [launches_until_enough(rng, -0.05, 0.01).verdict for _ in range(50)]
        assert found.count(Verdict.FASTER) >= 48

    def test_intervals_hold_at_every_stop(self) -> None:
        rng = random.Random(25)
        found = [launches_until_enough(rng, 0.02, 0.01) for _ in range(200)]
        assert sum(not each.ratio.excludes(1.02) for each in found) / len(found) >= 0.91


class TestEnough:
    def test_looks_only_when_planned(self) -> None:
        clear = exact(*[1.5] * 24)
        looked = [count for count in range(1, 24) if enough(clear[:count])]
        assert looked == list(LOOKS[:-1])

    def test_ends(self) -> None:
        rng = random.Random(3)
        unclear = [launch(rng, 0.0, 0.2) for _ in range(30)]
        assert [enough(unclear[:count]) for count in (4, 8, 20)] == [False] * 3
        assert enough(unclear[:24])
        assert enough(unclear)

    def test_more_tests_need_more(self) -> None:
        ratios = (1.018, 1.03, 1.04, 1.03)
        assert enough(exact(*ratios))
        assert not enough(exact(*ratios), tests=50)

    def test_nothing_yet(self) -> None:
        assert not enough([])


class TestDecide:
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
    def test_rule(self, estimate, p_value, p_same, verdict) -> None:
        assert decide(estimate, p_value, p_same, min_effect=0.01, alpha=0.05) is verdict

    def test_faster_and_slower_are_mirror_images(self) -> None:
        """10 % slower is a ratio of 1.1; undone, it is 1 / 1.1."""
        for ratio, verdict in ((1.101, Verdict.SLOWER), (1 / 1.101, Verdict.FASTER)):
            assert decide(ratio, 0.0, 1.0, min_effect=0.1, alpha=0.05) is verdict
        for ratio in (1.099, 1 / 1.099):
            assert decide(ratio, 0.0, 1.0, min_effect=0.1, alpha=0.05) is Verdict.SAME

    def test_no_least_effect(self) -> None:
        assert decide(1.001, 0.01, 1.0, min_effect=0.0, alpha=0.05) is Verdict.SLOWER

    @pytest.mark.parametrize(
        ("effect", "alpha", "message"),
        [
            (-0.01, 0.05, "min_effect is -0.01"),
            (math.nan, 0.05, "min_effect is nan"),
            (0.01, 0.0, "alpha is 0.0"),
            (0.01, 1.0, "alpha is 1.0"),
        ],
    )
    def test_settings(self, effect, alpha, message) -> None:
        with pytest.raises(DataError, match=message):
            decide(1.0, 0.5, 0.5, min_effect=effect, alpha=alpha)

    def test_a_verdict_is_its_word(self) -> None:
        assert Verdict.SLOWER == "slower"
        assert Verdict("same") is Verdict.SAME


class TestUnpaired:
    @staticmethod
    def run(seed: int, level: float, count: int = 50) -> list[float]:
        rng = random.Random(seed)
        return [level * math.exp(rng.gauss(0, 0.02)) for _ in range(count)]

    def test_clear(self) -> None:
        slower = compare_unpaired(self.run(1, 5.0), self.run(2, 5.5))
        assert (slower.verdict, slower.paired, slower.pairs) == (Verdict.SLOWER, False, 0)
        assert slower.ratio.estimate == pytest.approx(1.1, abs=0.02)
        assert compare_unpaired(self.run(2, 5.5), self.run(1, 5.0)).verdict is Verdict.FASTER

    def test_what_processes_differ_by_is_allowed_for(self) -> None:
        """2 % are nothing between two processes, though each has a median known to 0.2 %."""
        sides = self.run(1, 5.0, 2000), self.run(2, 5.1, 2000)
        assert compare_unpaired(*sides).verdict is Verdict.AMBIGUOUS
        assert compare_unpaired(*sides, process_spread=0.0).verdict is Verdict.SLOWER

    def test_one_sample_says_nothing(self) -> None:
        found = compare_unpaired([1.0], [2.0])
        assert (found.ratio.low, found.ratio.high) == (0.0, math.inf)
        assert found.verdict is Verdict.AMBIGUOUS

    def test_few_samples_say_little(self) -> None:
        few = compare_unpaired(self.run(1, 5.0, 4), self.run(2, 5.0, 4))
        many = compare_unpaired(self.run(1, 5.0), self.run(2, 5.0))
        assert few.error > many.error

    def test_false_alarms(self) -> None:
        rng = random.Random(26)
        alarms = 0
        for seed in range(150):
            levels = [5 * math.exp(rng.gauss(0, 0.01)) for _ in range(2)]
            found = compare_unpaired(self.run(seed, levels[0]), self.run(seed + 1000, levels[1]))
            alarms += found.verdict in (Verdict.SLOWER, Verdict.FASTER)
        assert alarms / 150 <= 0.1

    def test_ticks_widen(self) -> None:
        run = [0.5 * round(2 * value) for value in self.run(1, 10.0)]
        plain, ticked = compare_unpaired(run, run), compare_unpaired(run, run, resolution=0.5)
        assert ticked.error > plain.error

    @pytest.mark.parametrize(
        ("sides", "message"),
        [
            (([0.0], [1.0]), "median of the baseline is 0"),
            (([1.0], [0.0]), "median of the candidate"),
        ],
    )
    def test_no_ratio(self, sides, message) -> None:
        with pytest.raises(DataError, match=message):
            compare_unpaired(*sides)

    def test_bad_sample(self) -> None:
        with pytest.raises(ValueError, match="is nan"):
            compare_unpaired([1.0], [math.nan])

"""What the rules decide: on samples made by hand, and on made-up timers."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.stopping.entropy import Entropy, entropies, line_through
from flashinfer_bench.bench.stopping.fixed import Fixed
from flashinfer_bench.bench.stopping.noise import block_error, order_error, relative_error
from flashinfer_bench.bench.stopping.plan import TimingPlan
from flashinfer_bench.bench.stopping.registry import RULES, rule_of
from flashinfer_bench.bench.stopping.rse import RelativeStandardError, noise_change
from flashinfer_bench.stats.intervals import median_interval

_place = Path(__file__).with_name("made_up.py")
_spec = importlib.util.spec_from_file_location("fib_tests_made_up_timers", _place)
assert _spec is not None
assert _spec.loader is not None
made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made_up)

latencies = st.lists(st.floats(0, 1e12), min_size=1, max_size=200)
RUNS = 60


def noisy(noise: float, count: int, seed: int = 0) -> list[float]:
    return made_up.lognormal(noise)(random.Random(seed), count)


def worst(plan: TimingPlan, timer: str) -> float:
    """Return the error of the median that 95 % of runs do not exceed."""
    _, errors = made_up.runs(plan, made_up.TIMERS[timer], RUNS)
    return errors[int(0.95 * RUNS)]


@pytest.mark.parametrize("name", RULES)
class TestEveryRule:
    @given(samples=latencies)
    def test_any_samples_have_an_answer(self, name: str, samples: list[float]) -> None:
        rule = rule_of(name, {})
        assert isinstance(rule.wants_more(samples), bool)
        assert rule.outcome(samples)

    @given(samples=latencies)
    def test_the_same_samples_give_the_same_answer(self, name: str, samples: list[float]) -> None:
        rule, before = rule_of(name, {}), list(samples)
        answers = {rule.wants_more(samples), rule.wants_more(tuple(samples))}
        assert len(answers) == 1
        assert samples == before

    @pytest.mark.parametrize("value", [0.0, 1e-6, 3.0, 1e300])
    def test_equal_samples_are_enough(self, name: str, value: float) -> None:
        assert rule_of(name, {}).wants_more([value] * 150) is False

    def test_text_of_the_outcome_is_short(self, name: str) -> None:
        for samples in ([1.0], [0.0] * 40, noisy(0.1, 500)):
            text = rule_of(name, {}).outcome(samples)
            assert f"{len(samples)} samples" in text
            assert len(text) < 100


class TestFixed:
    @given(st.integers(1, 300), st.integers(1, 300))
    def test_counts(self, count: int, taken: int) -> None:
        assert Fixed(count).wants_more([1.0] * taken) is (taken < count)


class TestNoise:
    def test_known_order_statistics(self) -> None:
        """For 100 samples the interval of McKean and Schrader lies between the 38th and 63rd."""
        samples = [float(value) for value in range(1, 101)]
        assert order_error(samples) == pytest.approx((63 - 38) / (2 * 2.5758))

    def test_order_does_not_matter_to_one_and_matters_to_the_other(self) -> None:
        rising = [1 + place / 100 for place in range(100)]
        mixed = rising.copy()
        random.Random(0).shuffle(mixed)
        assert order_error(rising) == order_error(mixed)
        assert block_error(rising) > 2 * block_error(mixed)

    @pytest.mark.parametrize("count", [30, 100, 400])
    def test_is_about_the_real_error(self, count: int) -> None:
        medians = [median(noisy(0.05, count, seed)) for seed in range(300)]
        told = median(relative_error(noisy(0.05, count, seed)) for seed in range(300))
        assert 0.9 < told / stdev(medians) < 1.6

    def test_drift_is_seen(self) -> None:
        drifting = made_up.drifting(random.Random(1), 100)
        assert relative_error(drifting) > 3 * relative_error(noisy(0.01, 100))

    def test_outliers_do_not_count(self) -> None:
        samples = noisy(0.01, 100)
        spoiled = [1000.0 if place % 20 == 7 else value for place, value in enumerate(samples)]
        assert relative_error(spoiled) < 1.5 * relative_error(samples)

    def test_few_samples_tell_nothing(self) -> None:
        assert relative_error([1.0, 1.0, 1.0]) == math.inf
        assert block_error([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == 0.0

    def test_a_median_of_nothing(self) -> None:
        assert relative_error([0.0] * 50) == 0.0
        assert relative_error([0.0] * 26 + [1.0] * 24) == math.inf

    @given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=100), st.floats(1e-3, 1e3))
    def test_has_no_unit(self, samples: list[float], factor: float) -> None:
        scaled = [factor * sample for sample in samples]
        assert relative_error(scaled) == pytest.approx(relative_error(samples), rel=1e-6, abs=1e-9)


class TestRse:
    def test_quiet_samples_are_enough(self) -> None:
        assert RelativeStandardError().wants_more(noisy(0.01, 30)) is False
        assert RelativeStandardError(target=1e-5).wants_more(noisy(0.01, 30)) is True

    def test_noisy_ones_are_not(self) -> None:
        assert RelativeStandardError().wants_more(noisy(0.1, 100)) is True

    def test_a_later_sample_can_call_for_more(self) -> None:
        quiet = noisy(0.005, 40)
        assert RelativeStandardError().wants_more([*quiet, *noisy(0.3, 60)]) is True

    def test_least_time(self) -> None:
        rule = RelativeStandardError(min_time_ms=50)
        assert rule.wants_more([1.0] * 49) is True
        assert rule.wants_more([1.0] * 50) is False

    def test_gives_up_when_the_noise_is_known(self) -> None:
        samples = noisy(0.5, 20_000)
        change = noise_change(samples)
        assert change < 0.05
        assert (
            RelativeStandardError(target=1e-6, settled=1.01 * change).wants_more(samples) is False
        )
        assert RelativeStandardError(target=1e-6, settled=0.99 * change).wants_more(samples) is True
        assert RelativeStandardError(target=1e-6, settled=0).wants_more(samples) is True
        told = RelativeStandardError(target=1e-6).outcome(samples)
        assert told.endswith("target 0.00% not reached")

    def test_a_target_out_of_reach_does_not_always_cost_the_most(self) -> None:
        params = {"target": 1e-9}
        config = BenchmarkConfig(stop_rule="rse", stop_params=params, max_samples=20_000)
        counts, _ = made_up.runs(TimingPlan.of(config), made_up.TIMERS["log-normal, 30 %"], 9)
        assert 64 <= counts[4] < 10_000

    def test_does_not_give_up_on_few_samples(self) -> None:
        assert noise_change([1.0, 2.0] * 31) == math.inf
        assert noise_change([1.0] * 200) == math.inf

    @pytest.mark.parametrize(
        "timer", ["log-normal, 1 %", "log-normal, 3 %", "two modes, 70:30", "bursts of throttling"]
    )
    def test_what_is_reached_holds(self, timer: str) -> None:
        """The median is off by at most two standard errors, give or take 60 runs."""
        plan = TimingPlan.of(BenchmarkConfig(stop_rule="rse"))
        assert worst(plan, timer) <= 2.6 * 0.005

    def test_more_noise_takes_more_samples(self) -> None:
        plan = TimingPlan.of(BenchmarkConfig(stop_rule="rse"))
        timers = ("log-normal, 1 %", "log-normal, 3 %", "log-normal, 10 %", "log-normal, 30 %")
        counts = [median(made_up.runs(plan, made_up.TIMERS[name], 30)[0]) for name in timers]
        assert counts[0] == 30
        assert counts[-1] == 1000
        assert all(few < many for few, many in pairwise(counts))

    def test_a_smaller_target_takes_more_samples(self) -> None:
        def typical(target: float) -> float:
            config = BenchmarkConfig(stop_rule="rse", stop_params={"target": target})
            return median(
                made_up.runs(TimingPlan.of(config), made_up.TIMERS["log-normal, 3 %"], 30)[0]
            )

        assert typical(0.02) < typical(0.005) < typical(0.002)


class TestEntropy:
    def test_known_entropies(self) -> None:
        assert entropies([1.0, 2.0, 1.0, 2.0], 0) == pytest.approx([0, 1, 0.9182958, 1])
        assert entropies([float(2**power) for power in range(8)], 0)[-1] == pytest.approx(3)

    @given(latencies)
    def test_is_that_of_the_histogram(self, samples: list[float]) -> None:
        counts = [samples.count(value) for value in set(samples)]
        shares = [count / len(samples) for count in counts]
        expected = -sum(share * math.log2(share) for share in shares)
        assert entropies(samples, 0)[-1] == pytest.approx(expected, abs=1e-9)

    def test_bins_join_what_is_close(self) -> None:
        samples = [1.0 + place * 1e-6 for place in range(64)]
        assert entropies(samples, 0)[-1] == pytest.approx(6)
        assert entropies(samples, 0.005)[-1] == 0

    def test_zero_has_a_bin(self) -> None:
        assert entropies([0.0, 1.0], 0.005)[-1] == 1
        assert entropies([0.0, 5e-324], 1.0)[-1] == 1

    def test_lines(self) -> None:
        angle, straight = line_through([0.0, 1.0, 2.0, 3.0])
        assert (angle, straight) == (pytest.approx(45), pytest.approx(1))
        assert line_through([2.0] * 9) == (0.0, 1.0)
        assert line_through([0.0, 1.0, 1.0, 0.0])[1] == pytest.approx(0)

    def test_a_mode_that_comes_late_calls_for_more(self) -> None:
        settled = [1.0] * 100
        assert Entropy().wants_more(settled) is False
        assert Entropy().wants_more([*settled, *([2.0] * 20)]) is True

    def test_a_clock_of_fine_resolution_needs_bins(self) -> None:
        samples = noisy(0.01, 1000)
        assert Entropy(bin_width=0).wants_more(samples) is True
        assert Entropy().wants_more(samples) is False

    @pytest.mark.parametrize("timer", ["log-normal, 3 %", "two modes, 70:30", "heavy tail"])
    def test_ends_before_the_limit(self, timer: str) -> None:
        plan = TimingPlan.of(BenchmarkConfig(stop_rule="entropy"))
        counts, errors = made_up.runs(plan, made_up.TIMERS[timer], 20)
        assert median(counts) < 600
        assert median(errors) < 0.005


@pytest.mark.parametrize("rule", ["rse", "entropy"])
def test_stopping_does_not_spoil_the_interval(rule: str) -> None:
    """To stop when the samples look good might leave intervals too narrow."""
    plan, make = TimingPlan.of(BenchmarkConfig(stop_rule=rule)), made_up.TIMERS["log-normal, 3 %"]
    intervals = [median_interval(made_up.take(plan, make, seed)[0]) for seed in range(80)]
    assert sum(one.low <= 1.0 <= one.high for one in intervals) >= 70


def test_the_table_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, str(_place), "--runs", "2"], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 1 + len(made_up.TIMERS) * len(RULES)

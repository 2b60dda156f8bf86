"""What the rule ``rse`` decides: on samples made by hand, and on made-up timers."""

import importlib.util
import random
from itertools import pairwise
from pathlib import Path
from statistics import median, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_judge.stopping import RelativeStandardError, noise_change, relative_error
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.stopping import TimingPlan, rule_of, rules
from flashinfer_bench.stats.intervals import median_interval

_place = Path(__file__).with_name("made_up.py")
_spec = importlib.util.spec_from_file_location("fib_tests_made_up_timers", _place)
assert _spec is not None
assert _spec.loader is not None
made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made_up)

latencies = st.lists(st.floats(0, 1e12), min_size=1, max_size=200)
RUNS = 60


def noisy(noise, count, seed=0):
    return made_up.lognormal(noise)(random.Random(seed), count)


def worst(plan, timer):
    """Return the error of the median that 95 % of runs do not exceed."""
    _, errors = made_up.runs(plan, made_up.TIMERS[timer], RUNS)
    return errors[int(0.95 * RUNS)]


@pytest.mark.parametrize("name", rules())
class TestEveryRule:
    @given(samples=latencies)
    def test_any_samples_have_an_answer(self, name, samples):
        rule = rule_of(name, {})
        assert isinstance(rule.wants_more(samples), bool)
        assert rule.outcome(samples)

    @pytest.mark.parametrize("value", [0.0, 1e-6, 3.0, 1e300])
    def test_equal_samples_are_enough(self, name, value):
        assert rule_of(name, {}).wants_more([value] * 150) is False


@pytest.mark.parametrize("count", [30, 100, 400])
def test_noise_is_about_the_real_error(count):
    medians = [median(noisy(0.05, count, seed)) for seed in range(300)]
    told = median(relative_error(noisy(0.05, count, seed)) for seed in range(300))
    assert 0.9 < told / stdev(medians) < 1.6


class TestRse:
    def test_gives_up_when_the_noise_is_known(self):
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

    @pytest.mark.parametrize(
        "timer", ["log-normal, 1 %", "log-normal, 3 %", "two modes, 70:30", "bursts of throttling"]
    )
    def test_what_is_reached_holds(self, timer):
        """The median is off by at most two standard errors, give or take 60 runs."""
        plan = TimingPlan.of(BenchmarkConfig(stop_rule="rse"))
        assert worst(plan, timer) <= 2.6 * 0.005

    def test_more_noise_takes_more_samples(self):
        plan = TimingPlan.of(BenchmarkConfig(stop_rule="rse"))
        timers = ("log-normal, 1 %", "log-normal, 3 %", "log-normal, 10 %", "log-normal, 30 %")
        counts = [median(made_up.runs(plan, made_up.TIMERS[name], 30)[0]) for name in timers]
        assert counts[0] == 30
        assert counts[-1] == 1000
        assert all(few < many for few, many in pairwise(counts))


def test_stopping_does_not_spoil_the_interval():
    """To stop when the samples look good might leave intervals too narrow."""
    plan, make = TimingPlan.of(BenchmarkConfig(stop_rule="rse")), made_up.TIMERS["log-normal, 3 %"]
    intervals = [median_interval(made_up.take(plan, make, seed)[0]) for seed in range(80)]
    assert sum(one.low <= 1.0 <= one.high for one in intervals) >= 70

import math
import random
import subprocess
import sys
from statistics import median

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.intervals import (
    median_interval,
    ratio_interval,
)

RUNS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=80)


def noise(seed, count, level=20.0, spread=0.02):
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, spread)) for _ in range(count)]


def width(interval):
    """Return the width as a share of the estimate."""
    return (interval.high - interval.low) / interval.estimate


class TestMedianInterval:
    @given(RUNS)
    def test_holds_the_median_and_stays_among_the_samples(self, samples):
        interval = median_interval(samples)
        assert interval.low <= interval.estimate <= interval.high
        assert interval.estimate == pytest.approx(median(samples))
        assert min(samples) <= interval.low
        assert interval.high <= max(samples)

    @given(RUNS, st.sampled_from([0.001, 0.5, 3.0]))
    def test_never_raises_on_ticks(self, samples, tick):
        run = [tick * round(value / tick) for value in samples]
        interval = median_interval(run, resolution=tick)
        assert 0 <= interval.low <= interval.estimate <= interval.high
        assert interval.high <= max(run) + tick

    @given(RUNS, st.floats(1e-3, 1e3))
    def test_the_unit_does_not_matter(self, samples, factor):
        scaled = [factor * x for x in samples]
        assume(len({*scaled}) == len({*samples}))  # rounding makes equals of neighbours: ties count
        one, other = median_interval(samples), median_interval(scaled)
        assert other.low == pytest.approx(factor * one.low, rel=1e-6)
        assert other.high == pytest.approx(factor * one.high, rel=1e-6)

    @pytest.mark.parametrize(
        ("count", "confidence"), [(1, 0.0), (2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)]
    )
    def test_few_samples_say_what_they_can(self, count, confidence):
        run = noise(1, count)
        interval = median_interval(run)
        assert (interval.low, interval.high) == (min(run), max(run))
        assert interval.confidence == confidence

    def test_median_of_grouped_data(self):
        """Half of the samples are on ticks below: the median is the edge between two ticks."""
        run = [1.0] * 300 + [1.5] * 200 + [2.0] * 100
        interval = median_interval(run, resolution=0.5)
        assert interval.estimate == pytest.approx(1.25, abs=1e-3)

    def test_the_order_of_calls_matters(self):
        """A run that wanders tells less of its median than the same samples shuffled."""
        rng = random.Random(4)
        state, run = 0.0, []
        for _ in range(300):
            state = 0.8 * state + rng.gauss(0, 1)
            run.append(20 + 0.1 * state)
        shuffled = rng.sample(run, len(run))
        assert width(median_interval(run)) > 1.5 * width(median_interval(shuffled))

    def test_drift_is_no_noise(self):
        run = [value * (1 + 0.1 * i / 300) for i, value in enumerate(noise(5, 300, spread=0.01))]
        shuffled = random.Random(5).sample(run, len(run))
        assert width(median_interval(run)) < 0.8 * width(median_interval(shuffled))

    def test_strict_alternation_does_not_collapse(self):
        rng = random.Random(6)
        run = [(20 if i % 2 else 21) + rng.gauss(0, 0.01) for i in range(200)]
        interval = median_interval(run)
        assert interval.low < interval.high

    @pytest.mark.parametrize(
        "settings_", [{"confidence": 0.0}, {"confidence": 1.0}, {"confidence": math.nan}]
    )
    def test_confidence_out_of_range(self, settings_):
        with pytest.raises(DataError, match="confidence is"):
            median_interval([1.0], **settings_)


class TestRatioInterval:
    def test_of_medians(self):
        slow, fast = noise(1, 100, 20.0), noise(2, 100, 10.0)
        interval = ratio_interval(slow, fast)
        assert interval.estimate == pytest.approx(median(slow) / median(fast))
        assert interval.low < 2.0 < interval.high
        assert interval.confidence == 0.95

    @pytest.mark.parametrize(
        ("sides", "name"), [(([0.0], [1.0]), "numerator"), (([1.0], [0.0]), "denominator")]
    )
    def test_no_ratio(self, sides, name):
        with pytest.raises(DataError, match=f"median of the {name} is 0"):
            ratio_interval(*sides)


def test_light():
    """Reports and the command line import this: no numerical library may come with it."""
    code = (
        "import sys, flashinfer_bench.stats.intervals\n"
        "heavy = {'numpy', 'torch', 'scipy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

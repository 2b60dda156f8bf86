from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist, fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.stats.describe import count_outliers, describe
from flashinfer_bench.stats.intervals import median_interval

RUNS = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


class TestDescribe:
    def test_by_hand(self) -> None:
        summary = describe([5.0, 1.0, 2.0, 4.0, 3.0])
        assert (summary.count, summary.median, summary.mean) == (5, 3.0, 3.0)
        assert (summary.minimum, summary.maximum) == (1.0, 5.0)
        assert (summary.p25, summary.p75) == (2.0, 4.0)
        assert summary.p05 == pytest.approx(1.2)
        assert summary.p95 == pytest.approx(4.8)
        assert summary.relative_spread == pytest.approx(1.4826 / 3)
        assert summary.outliers == 0

    @given(RUNS)
    def test_in_order(self, samples) -> None:
        found = describe(samples)
        steps = [
            found.minimum,
            found.p05,
            found.p25,
            found.median,
            found.p75,
            found.p95,
            found.maximum,
        ]
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(steps))
        assert found.median == pytest.approx(median(samples))
        assert found.mean == pytest.approx(fmean(samples))
        assert found.interval == median_interval(samples)
        assert 0 <= found.outliers <= found.count / 2

    def test_settings_reach_the_interval(self) -> None:
        run = [0.5 * round(2 * x) for x in (1.1, 1.4, 1.6, 2.2, 0.9, 1.5, 1.7, 3.0)]
        found = describe(run, confidence=0.5, resolution=0.5)
        assert found.interval == median_interval(run, confidence=0.5, resolution=0.5)

    def test_spread_of_a_normal_distribution(self) -> None:
        rng = random.Random(1)
        run = [20 * math.exp(rng.gauss(0, 0.02)) for _ in range(4000)]
        assert describe(run).relative_spread == pytest.approx(0.02, rel=0.05)

    def test_spread_does_not_follow_outliers(self) -> None:
        rng = random.Random(1)
        run = [20 + rng.gauss(0, 0.2) for _ in range(100)]
        assert describe([*run, 1e6]).relative_spread < 1.1 * describe(run).relative_spread

    def test_zeros(self) -> None:
        assert describe([0.0, 0.0]).relative_spread == 0.0
        assert describe([0.0, 0.0, 1.0]).relative_spread == math.inf

    @pytest.mark.parametrize("samples", [[], [math.nan], [1.0, -1.0]])
    def test_no_latencies(self, samples) -> None:
        with pytest.raises(ValueError, match="samples"):
            describe(samples)


class TestOutliers:
    def test_far_ones_on_both_sides(self) -> None:
        bulk = [20 + 0.01 * i for i in range(50)]
        assert count_outliers(bulk) == 0
        assert count_outliers([*bulk, 25.0, 26.0, 3.0]) == 3

    def test_share_of_lognormal_samples(self) -> None:
        """0.7 % lie beyond the fences, as 0.67449 quartiles times (1 + 2 * 1.5) tell."""
        rng = random.Random(2)
        share = count_outliers([rng.lognormvariate(0, 1.5) for _ in range(20_000)]) / 20_000
        assert share == pytest.approx(2 * NormalDist().cdf(-4 * 0.67449), abs=0.003)

    @given(RUNS, st.floats(1e-3, 1e3))
    def test_at_most_half(self, samples, factor) -> None:
        assert count_outliers([factor * x for x in samples]) <= len(samples) / 2

    def test_the_next_tick_is_none(self) -> None:
        run = [10.0] * 30 + [10.5, 9.5, 12.0]
        assert count_outliers(run) == 3
        assert count_outliers(run, resolution=0.5) == 1

    def test_zeros_have_no_logarithm(self) -> None:
        assert count_outliers([0.0] * 10 + [1.0]) == 1
        assert count_outliers([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]) == 0

    def test_huge_ratios_do_not_overflow(self) -> None:
        assert count_outliers([1e-300, 1e-300, 1e300, 1e300]) == 0

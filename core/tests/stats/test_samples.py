from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.samples import (
    count_outliers,
    quantile,
    require_samples,
)


class TestRequireSamples:
    @pytest.mark.parametrize(
        ("samples", "index", "value"),
        [
            ([math.nan], 0, "nan"),
            ([1.0, -0.5], 1, "-0.5"),
            ([1.0, 2.0, math.inf], 2, "inf"),
            ([-math.inf, math.nan], 0, "-inf"),
            ([0.0, 1.0, -1e-30], 2, "-1e-30"),
        ],
    )
    def test_index_and_value_are_named(self, samples, index, value) -> None:
        with pytest.raises(DataError) as error:
            require_samples(samples, "latencies_ms")
        assert f"latencies_ms[{index}] is {value}" in str(error.value)
        assert "fib timers check" in str(error.value)


class TestQuantile:
    def test_as_numpy_does(self) -> None:
        numpy = pytest.importorskip("numpy")
        rng = random.Random(2)
        samples = [rng.lognormvariate(0, 1) for _ in range(37)]
        for share in (0.0, 0.05, 0.25, 0.5, 0.77, 1.0):
            assert quantile(sorted(samples), share) == pytest.approx(numpy.quantile(samples, share))


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

    def test_zeros_have_no_logarithm(self) -> None:
        assert count_outliers([0.0] * 10 + [1.0]) == 1
        assert count_outliers([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]) == 0

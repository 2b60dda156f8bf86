import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.distributions import t_quantile, two_sided_p
from flashinfer_bench.stats.samples import (
    count_outliers,
    quantile,
    require_samples,
)


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
def test_require_samples_index_and_value_are_named(samples, index, value):
    with pytest.raises(DataError) as error:
        require_samples(samples, "latencies_ms")
    assert f"latencies_ms[{index}] is {value}" in str(error.value)
    assert "fib timers check" in str(error.value)


def test_quantile_as_numpy_does():
    numpy = pytest.importorskip("numpy")
    rng = random.Random(2)
    samples = [rng.lognormvariate(0, 1) for _ in range(37)]
    for share in (0.0, 0.05, 0.25, 0.5, 0.77, 1.0):
        assert quantile(sorted(samples), share) == pytest.approx(numpy.quantile(samples, share))


class TestOutliers:
    def test_far_ones_on_both_sides(self):
        bulk = [20 + 0.01 * i for i in range(50)]
        assert count_outliers(bulk) == 0
        assert count_outliers([*bulk, 25.0, 26.0, 3.0]) == 3

    def test_share_of_lognormal_samples(self):
        """0.7 % lie beyond the fences, as 0.67449 quartiles times (1 + 2 * 1.5) tell."""
        rng = random.Random(2)
        share = count_outliers([rng.lognormvariate(0, 1.5) for _ in range(20_000)]) / 20_000
        assert share == pytest.approx(2 * NormalDist().cdf(-4 * 0.67449), abs=0.003)

    def test_zeros_have_no_logarithm(self):
        assert count_outliers([0.0] * 10 + [1.0]) == 1
        assert count_outliers([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]) == 0


# ---------------------------------------------------------------------------------- distributions

# From the tables of Student's distribution.
TABLE = [
    (0.95, 1, 12.7062),
    (0.95, 2, 4.30265),
    (0.95, 5, 2.57058),
    (0.95, 10, 2.22814),
    (0.95, 30, 2.04227),
    (0.95, 120, 1.97993),
    (0.99, 3, 5.84091),
    (0.99, 20, 2.84534),
    (0.90, 7, 1.89458),
    (0.999, 4, 8.61030),
]


@pytest.mark.parametrize(("confidence", "freedom", "value"), TABLE)
def test_quantile_table(confidence, freedom, value):
    assert t_quantile(confidence, freedom) == pytest.approx(value, rel=2e-6)


@given(st.floats(0, 1e3))
def test_two_sided_p_cauchy_in_closed_form(value):
    assert two_sided_p(value, 1) == pytest.approx(1 - 2 / math.pi * math.atan(value), abs=1e-10)

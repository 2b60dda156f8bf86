from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import DataError
from flashinfer_bench.stats.describe import require_samples
from flashinfer_bench.stats.samples import at_rank, median_of, quantile

LATENCIES = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


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

    def test_empty(self) -> None:
        with pytest.raises(ValueError, match="no samples; at least one"):
            require_samples([])

    def test_zero_and_integers_are_latencies(self) -> None:
        assert require_samples([0, 1, 2.5]) == (0.0, 1.0, 2.5)

    @given(LATENCIES)
    def test_what_is_allowed_comes_back(self, samples) -> None:
        assert list(require_samples(samples)) == samples


class TestQuantile:
    def test_by_hand(self) -> None:
        assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
        assert quantile([1.0, 2.0, 3.0, 5.0], 0.75) == 3.5
        assert quantile([7.0], 0.3) == 7.0

    @given(LATENCIES, st.floats(0, 1), st.floats(0, 1))
    def test_monotone_and_inside(self, samples, one, other) -> None:
        ordered = sorted(samples)
        low, high = quantile(ordered, min(one, other)), quantile(ordered, max(one, other))
        slack = 1e-9 * max(1.0, ordered[-1])
        assert ordered[0] - slack <= low <= high + slack <= ordered[-1] + 2 * slack

    def test_as_numpy_does(self) -> None:
        numpy = pytest.importorskip("numpy")
        rng = random.Random(2)
        samples = [rng.lognormvariate(0, 1) for _ in range(37)]
        for share in (0.0, 0.05, 0.25, 0.5, 0.77, 1.0):
            assert quantile(sorted(samples), share) == pytest.approx(numpy.quantile(samples, share))

    def test_rank_beyond_the_ends(self) -> None:
        assert at_rank([1.0, 2.0], -3) == 1.0
        assert at_rank([1.0, 2.0], 9) == 2.0

    def test_median_does_not_need_order(self) -> None:
        assert median_of([3.0, 1.0, 2.0]) == 2.0

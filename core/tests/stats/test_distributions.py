from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.stats.distributions import t_quantile, two_sided_p

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


class TestQuantile:
    @pytest.mark.parametrize(("confidence", "freedom", "value"), TABLE)
    def test_table(self, confidence, freedom, value) -> None:
        assert t_quantile(confidence, freedom) == pytest.approx(value, rel=2e-6)


class TestTwoSidedP:
    @given(st.floats(0, 1e3))
    def test_cauchy_in_closed_form(self, value) -> None:
        assert two_sided_p(value, 1) == pytest.approx(1 - 2 / math.pi * math.atan(value), abs=1e-10)

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.stats.distributions import normal_quantile, t_quantile, two_sided_p

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

    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.9999])
    def test_becomes_the_normal_one(self, confidence) -> None:
        normal = normal_quantile((1 + confidence) / 2)
        assert t_quantile(confidence, math.inf) == pytest.approx(normal, rel=1e-8)
        assert t_quantile(confidence, 1e6) == pytest.approx(normal, rel=1e-5)


class TestTwoSidedP:
    @given(st.floats(0, 1e3))
    def test_cauchy_in_closed_form(self, value) -> None:
        assert two_sided_p(value, 1) == pytest.approx(1 - 2 / math.pi * math.atan(value), abs=1e-10)

    @given(st.floats(-50, 50), st.floats(0.5, 1e6))
    def test_symmetric_and_a_share(self, value, freedom) -> None:
        p = two_sided_p(value, freedom)
        assert 0 <= p <= 1
        assert p == two_sided_p(-value, freedom)

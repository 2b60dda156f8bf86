from __future__ import annotations

import math
import sys
from typing import Optional

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_tests import forked
from flashinfer_bench.bench.correctness import Comparison, compare

NAN, INF = math.nan, math.inf

# ------------------------------------------------------------------ the rule, spelled out slowly


def matches(actual: float, expected: float, atol: float, rtol: float) -> bool:
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    if math.isinf(expected) or math.isinf(actual):
        return actual == expected
    error = abs(actual - expected)
    return error <= atol or error / max(abs(expected), 1e-8) <= rtol


def oracle(
    actual: list[float], expected: list[float], atol: float, rtol: float
) -> tuple[int, float, float, int, Optional[int]]:
    matched, absolute, relative, out_of_place, first = 0, 0.0, 0.0, 0, None
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        good = matches(a, e, atol, rtol)
        matched += good
        if not good and first is None:
            first = index
        if math.isfinite(a) and math.isfinite(e):
            absolute = max(absolute, abs(a - e))
            relative = max(relative, abs(a - e) / max(abs(e), 1e-8))
        elif not good:
            out_of_place += 1
    if out_of_place:
        absolute = relative = INF
    return matched, absolute, relative, out_of_place, first


def summary(found: Comparison) -> tuple[int, float, float, int, Optional[int]]:
    first = found.first_failing.index[0] if found.first_failing else None
    return (
        found.matched,
        found.max_absolute_error,
        found.max_relative_error,
        found.nonfinite_mismatches,
        first,
    )


numbers = st.one_of(
    st.floats(width=32, allow_subnormal=False),  # torch may flush those to zero
    st.sampled_from([0.0, -0.0, 1.0, 1.01, -1.0, 1e-9, 1e-3, NAN, INF, -INF, 3e38, -3e38]),
)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30)
tolerances = st.sampled_from([0.0, 1e-8, 1e-3, 1e-2, 0.5, 1.0])


class TestAgainstTheOracle:
    @given(pairs, tolerances, tolerances)
    def test_float32(self, values: list[tuple[float, float]], atol: float, rtol: float) -> None:
        actual, expected = (list(side) for side in zip(*values, strict=True))
        left, right = torch.tensor(actual), torch.tensor(expected)
        found = compare(left, right, atol=atol, rtol=rtol)
        assert summary(found) == oracle(left.tolist(), right.tolist(), atol, rtol)

    @given(st.data(), tolerances)
    def test_narrow_floats(self, data: st.DataObject, tolerance: float) -> None:
        names = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64"]
        dtype = getattr(torch, data.draw(st.sampled_from(names)))
        values = data.draw(pairs)
        actual, expected = (
            torch.tensor(side, dtype=torch.float32).to(dtype) for side in zip(*values, strict=True)
        )
        found = compare(actual, expected, atol=tolerance, rtol=tolerance)
        reread = actual.double().tolist(), expected.double().tolist()
        assert summary(found) == oracle(*reread, tolerance, tolerance)


class TestEdges:
    @pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
    def test_nothing_to_compare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        empty = torch.empty(shape, dtype=dtype)
        found = compare(empty, empty.clone(), atol=0.0, rtol=0.0)
        assert (found.elements, found.matched_ratio, found.max_absolute_error) == (0, 1.0, 0.0)
        assert found.passes(1.0)
        assert found.first_failing is None

    def test_reference_may_be_of_a_wider_type(self) -> None:
        expected = torch.tensor([1.001, 2.0], dtype=torch.float64)
        found = compare(expected.to(torch.bfloat16), expected, atol=1e-2, rtol=0.0)
        assert found.matched == 2
        assert found.max_absolute_error == pytest.approx(0.001)

    def test_first_failing_index_is_in_row_major_order(self) -> None:
        expected = torch.zeros(2, 3, 4)
        actual = expected.clone()
        actual[1, 2, 0] = 5.0
        actual[1, 0, 3] = 7.0
        first = compare(actual, expected, atol=0.1, rtol=0.1).first_failing
        assert first is not None
        assert (first.index, first.actual) == ((1, 0, 3), 7.0)

    def test_extremes_do_not_wrap_around(self) -> None:
        low, high = -(2**63), 2**63 - 1
        found = compare(torch.tensor([low]), torch.tensor([high]), atol=0.0, rtol=0.0)
        assert found.max_absolute_error == pytest.approx(2.0**64)


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_where_the_first_mismatch_is(shape: list[int], data: st.DataObject) -> None:
    """An index of any shape."""
    expected = torch.zeros(shape)
    actual = expected.clone()
    index = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    actual[index] = 5.0
    first = compare(actual, expected, atol=1e-3, rtol=1e-3).first_failing
    assert first is not None
    assert (first.index, first.actual) == (index, 5.0)


def test_a_mismatch_imports_no_symbolic_algebra() -> None:
    program = (
        "import sys, torch; from flashinfer_bench.bench.correctness import compare;"
        "sys.modules.pop('sympy', None); compare(torch.ones(2), torch.zeros(2), atol=0, rtol=0);"
        "print('sympy' in sys.modules)"
    )
    assert forked.run([sys.executable, "-c", program], check=True).stdout == "False\n"

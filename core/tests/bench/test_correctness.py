from __future__ import annotations

import math
from typing import Any, Optional

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.judge import correctness
from flashinfer_bench.bench.judge.correctness import Comparison, compare, unpack_float4

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
nearly = st.lists(st.tuples(st.floats(-10, 10), st.floats(-0.1, 0.1)), min_size=1, max_size=30)
tolerances = st.sampled_from([0.0, 1e-8, 1e-3, 1e-2, 0.5, 1.0])


class TestAgainstTheOracle:
    @given(pairs, tolerances, tolerances)
    def test_float32(self, values: list[tuple[float, float]], atol: float, rtol: float) -> None:
        actual, expected = (list(side) for side in zip(*values, strict=True))
        left, right = torch.tensor(actual), torch.tensor(expected)
        found = compare(left, right, atol=atol, rtol=rtol)
        assert summary(found) == oracle(left.tolist(), right.tolist(), atol, rtol)

    @given(nearly, tolerances, tolerances)
    def test_close_values(
        self, values: list[tuple[float, float]], atol: float, rtol: float
    ) -> None:
        expected = torch.tensor([value for value, _ in values])
        actual = expected + torch.tensor([error for _, error in values])
        found = compare(actual, expected, atol=atol, rtol=rtol)
        assert summary(found) == oracle(actual.tolist(), expected.tolist(), atol, rtol)

    @given(st.data(), tolerances)
    @settings(max_examples=60)
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

    @given(
        st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "bool"]),
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20),
    )
    def test_integers_are_exact(self, name: str, values: list[tuple[int, int]]) -> None:
        dtype = getattr(torch, name)
        actual, expected = (torch.tensor(s, dtype=dtype) for s in zip(*values, strict=True))
        found = compare(actual, expected, atol=100.0, rtol=100.0)
        reread = [int(x) for x in actual], [int(x) for x in expected]
        assert summary(found) == oracle(*([float(x) for x in s] for s in reread), 0.0, 0.0)

    @given(pairs, st.integers(1, 7), tolerances)
    @settings(max_examples=60)
    def test_chunks_change_nothing(
        self, values: list[tuple[float, float]], chunk: int, tolerance: float
    ) -> None:
        actual, expected = (torch.tensor(side) for side in zip(*values, strict=True))
        whole = compare(actual, expected, atol=tolerance, rtol=tolerance)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(correctness, "_CHUNK", chunk)
            assert summary(compare(actual, expected, atol=tolerance, rtol=tolerance)) == summary(
                whole
            )


class TestNonFinite:
    def test_equal_ones_match(self) -> None:
        values = torch.tensor([NAN, INF, -INF, 1.0])
        found = compare(values, values.clone(), atol=0.0, rtol=0.0)
        assert found.matched_ratio == 1.0
        assert found.max_absolute_error == found.max_relative_error == 0.0
        assert found.passes(1.0)

    @pytest.mark.parametrize(
        ("actual", "expected"),
        [(0.0, NAN), (NAN, 0.0), (INF, NAN), (INF, -INF), (60000.0, INF), (-INF, 0.0), (NAN, INF)],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_others_fail_at_any_tolerance(
        self, actual: float, expected: float, dtype: torch.dtype
    ) -> None:
        left, right = torch.tensor([1.0, actual]).to(dtype), torch.tensor([1.0, expected]).to(dtype)
        found = compare(left, right, atol=1e9, rtol=1e9)
        assert found.nonfinite_mismatches == 1
        assert found.max_absolute_error == found.max_relative_error == INF
        assert not found.passes(0.1)

    def test_zeros_do_not_match_an_all_nan_reference(self) -> None:
        found = compare(torch.zeros(8), torch.full((8,), NAN), atol=1.0, rtol=1.0)
        assert found.matched == 0


class TestEdges:
    @pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
    def test_nothing_to_compare(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        empty = torch.empty(shape, dtype=dtype)
        found = compare(empty, empty.clone(), atol=0.0, rtol=0.0)
        assert (found.elements, found.matched_ratio, found.max_absolute_error) == (0, 1.0, 0.0)
        assert found.passes(1.0)
        assert found.first_failing is None

    def test_scalar(self) -> None:
        found = compare(torch.tensor(3.0), torch.tensor(4.0), atol=0.1, rtol=0.1)
        assert found.elements == 1
        assert found.first_failing is not None
        assert found.first_failing.index == ()
        assert (found.first_failing.actual, found.first_failing.expected) == (3.0, 4.0)

    def test_shapes_must_be_equal(self) -> None:
        with pytest.raises(ValueError, match=r"\(1,\) and \(2,\)"):
            compare(torch.zeros(1), torch.zeros(2), atol=1.0, rtol=1.0)

    def test_layout_does_not_matter(self) -> None:
        expected = torch.arange(12.0).reshape(3, 4)
        actual = expected.t().contiguous().t()
        assert not actual.is_contiguous()
        assert compare(actual, expected, atol=0.0, rtol=0.0).matched == 12

    def test_reference_may_be_of_a_wider_type(self) -> None:
        expected = torch.tensor([1.001, 2.0], dtype=torch.float64)
        found = compare(expected.to(torch.bfloat16), expected, atol=1e-2, rtol=0.0)
        assert found.matched == 2
        assert found.max_absolute_error == pytest.approx(0.001)

    def test_or_not_and(self) -> None:
        expected = torch.tensor([1000.0, 1e-6])
        actual = torch.tensor([1005.0, 5e-3])  # one within rtol only, one within atol only
        assert compare(actual, expected, atol=1e-2, rtol=1e-2).matched == 2

    def test_first_failing_index_is_in_row_major_order(self) -> None:
        expected = torch.zeros(2, 3, 4)
        actual = expected.clone()
        actual[1, 2, 0] = 5.0
        actual[1, 0, 3] = 7.0
        first = compare(actual, expected, atol=0.1, rtol=0.1).first_failing
        assert first is not None
        assert (first.index, first.actual) == ((1, 0, 3), 7.0)

    def test_large_integers_that_floats_cannot_tell_apart(self) -> None:
        actual = torch.tensor([2**60 + 1, 2**60])
        expected = torch.tensor([2**60, 2**60])
        found = compare(actual, expected, atol=1e9, rtol=1e9)
        assert (found.matched, found.max_absolute_error) == (1, 1.0)
        assert found.first_failing is not None
        assert found.first_failing.actual == 2**60 + 1

    def test_extremes_do_not_wrap_around(self) -> None:
        low, high = -(2**63), 2**63 - 1
        found = compare(torch.tensor([low]), torch.tensor([high]), atol=0.0, rtol=0.0)
        assert found.max_absolute_error == pytest.approx(2.0**64)

    def test_float32_overflow_of_the_difference(self) -> None:
        found = compare(torch.tensor([3e38]), torch.tensor([-3e38]), atol=1e30, rtol=1.0)
        assert found.matched == 0
        assert found.max_absolute_error == pytest.approx(6e38)

    def test_inputs_are_not_modified(self) -> None:
        actual, expected = torch.tensor([1.0, NAN]), torch.tensor([2.0, 3.0])
        compare(actual, expected, atol=0.0, rtol=0.0)
        assert actual[0] == 1.0
        assert expected.tolist() == [2.0, 3.0]

    def test_gradients_do_not_get_in_the_way(self) -> None:
        actual = torch.ones(2, requires_grad=True)
        assert compare(actual, torch.ones(2), atol=0.0, rtol=0.0).matched == 2


class TestRatio:
    @pytest.mark.parametrize(("required", "passes"), [(1.0, False), (0.76, False), (0.75, True)])
    def test_share_of_elements(self, required: float, passes: bool) -> None:
        actual = torch.tensor([1.0, 1.0, 1.0, 9.0])
        found = compare(actual, torch.ones(4), atol=1e-2, rtol=1e-2)
        assert found.matched_ratio == 0.75
        assert found.passes(required) is passes

    def test_one_in_many_is_not_rounded_away(self) -> None:
        found = Comparison(10**12, 10**12 - 1, 1.0, 1.0, 0, None)
        assert not found.passes(1.0)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has no float4")
class TestFloat4:
    def packed(self, *codes: int) -> Any:
        return torch.tensor(codes, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    def test_values(self) -> None:
        low_to_high = [code | (code + 1) << 4 for code in range(0, 16, 2)]
        values = unpack_float4(self.packed(*low_to_high)).tolist()
        positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        assert values == positive + [-value for value in positive]

    def test_each_half_byte_is_an_element(self) -> None:
        found = compare(self.packed(0x21, 0x43), self.packed(0x21, 0x42), atol=0.0, rtol=0.0)
        assert (found.elements, found.matched) == (4, 3)
        assert found.first_failing is not None
        assert (found.first_failing.index, found.first_failing.expected) == ((2,), 1.0)

    def test_other_types_stay_as_they_are(self) -> None:
        tensor = torch.zeros(3)
        assert unpack_float4(tensor) is tensor

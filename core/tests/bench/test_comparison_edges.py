"""Comparing what is not plain float32: odd types, huge integers, pieces, caps; and histograms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench import DefaultEvaluator, correctness
from flashinfer_bench.bench.correctness import compare, error_histogram
from flashinfer_bench.bench.evaluators import Check, Trial
from flashinfer_bench.data import EvaluationStatus, TensorSpec, Tolerance

NAN, INF = math.nan, math.inf
FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)


class TestNonFinite:
    """NaN and inf are values with a place, whatever is next to them."""

    def test_float64_that_overflows_is_finite_but_wrong(self) -> None:
        big = torch.tensor([1e308], dtype=torch.float64)
        found = compare(-big, big, atol=1e300, rtol=1.0)
        assert (found.matched, found.nonfinite_mismatches) == (0, 0)
        assert found.max_absolute_error == INF

    @pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
    def test_float8(self, name: str) -> None:
        dtype = getattr(torch, name)
        expected = torch.tensor([448.0, NAN, 2.0, -0.5]).to(dtype)
        assert compare(expected, expected.clone(), atol=0.0, rtol=0.0).matched == 4
        saturated = torch.tensor([448.0, 448.0, 2.0, -0.5]).to(dtype)
        found = compare(saturated, expected, atol=1e9, rtol=1e9)
        assert (found.matched, found.nonfinite_mismatches) == (3, 1)

    def test_nan_of_another_sign_and_payload_is_nan(self) -> None:
        bits = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32)
        found = compare(bits.view(torch.float32), torch.full((3,), NAN), atol=0.0, rtol=0.0)
        assert found.matched == 3


class TestComplex:
    def test_both_parts_count(self) -> None:
        expected = torch.tensor([1 + 2j, 3 - 4j])
        actual = torch.tensor([1 + 2j, 3 + 4j])
        found = compare(actual, expected, atol=1e-3, rtol=1e-3)
        assert (found.elements, found.matched) == (4, 3)
        assert found.max_absolute_error == 8.0
        assert found.first_failing is not None
        assert found.first_failing.index == (1, 1)


class TestIntegers:
    @given(
        st.lists(
            st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 2)), min_size=1, max_size=9
        )
    )
    def test_every_bit_counts(self, values: list[tuple[int, int]]) -> None:
        def clamp(value: int) -> int:
            return min(max(value, -(2**63)), 2**63 - 1)

        expected = [value for value, _ in values]
        actual = [clamp(value + step) for value, step in values]
        found = compare(torch.tensor(actual), torch.tensor(expected), atol=9e18, rtol=9e18)
        same = [a == e for a, e in zip(actual, expected, strict=True)]
        assert found.matched == sum(same)
        assert found.passes(1.0) is all(same)
        first = same.index(False) if False in same else None
        assert first == (found.first_failing.index[0] if found.first_failing else None)

    @pytest.mark.parametrize("pair", [(2**64 - 1, -1), (2**63, -(2**63))])
    def test_unsigned_ones_do_not_wrap_around(self, pair: tuple[int, int]) -> None:
        actual, expected = torch.tensor([pair[0]], dtype=torch.uint64), torch.tensor([pair[1]])
        assert compare(actual, expected, atol=0.0, rtol=0.0).matched == 0
        assert compare(expected, actual, atol=0.0, rtol=0.0).matched == 0
        assert compare(actual, actual.clone(), atol=0.0, rtol=0.0).matched == 1


@pytest.mark.skipif(FLOAT4 is None, reason="torch has no float4")
class TestFloat4:
    def test_each_half_byte_is_an_element(self) -> None:
        actual, expected = (
            torch.tensor(codes, dtype=torch.uint8).view(FLOAT4)
            for codes in ([0x21, 0x43], [0x21, 0x42])
        )
        found = compare(actual, expected, atol=0.0, rtol=0.0)
        assert (found.elements, found.matched) == (4, 3)
        assert found.first_failing is not None
        assert (found.first_failing.index, found.first_failing.expected) == ((2,), 1.0)

    @given(st.binary(min_size=1, max_size=40), st.data())
    def test_pieces_change_nothing(self, codes: bytes, data: st.DataObject) -> None:
        expected = torch.frombuffer(bytearray(codes), dtype=torch.uint8).view(FLOAT4)
        changed = bytearray(codes)
        changed[data.draw(st.integers(0, len(codes) - 1))] ^= data.draw(st.integers(0, 255))
        actual = torch.frombuffer(changed, dtype=torch.uint8).view(FLOAT4)
        whole = compare(actual, expected, atol=0.1, rtol=0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(correctness, "_CHUNK", 2 * data.draw(st.integers(1, 9)))
            assert compare(actual, expected, atol=0.1, rtol=0.0) == whole
        assert whole.elements == 2 * len(codes)


class TestPieces:
    def test_the_first_failing_place_in_a_later_piece(self) -> None:
        count = 3 * correctness._CHUNK + 5
        expected = torch.zeros(count)
        actual = expected.clone()
        actual[[2 * correctness._CHUNK + 1, count - 1]] = 1.0
        found = compare(actual, expected, atol=0.1, rtol=0.1)
        assert (found.elements, found.matched) == (count, count - 2)
        assert found.first_failing is not None
        assert found.first_failing.index == (2 * correctness._CHUNK + 1,)


class TestHistogram:
    def test_nonfinite_ones(self) -> None:
        actual = torch.tensor([NAN, NAN, INF, INF, 1.0, 2.0])
        expected = torch.tensor([NAN, 1.0, INF, -INF, 1.0, 1.0])
        found = error_histogram(actual, expected)
        assert found["absolute"] == {"<1e-12": 3, "1e+00": 1, "nonfinite": 2}

    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
    def test_every_element_is_counted_in_its_decade(self, errors: list[float]) -> None:
        actual = torch.tensor(errors, dtype=torch.float64)
        found = error_histogram(actual, torch.zeros_like(actual))["absolute"]
        assert sum(found.values()) == len(errors)
        for name, count in found.items():
            assert count <= sum(near_decade(error, name) for error in errors)


def near_decade(error: float, name: str) -> bool:
    """Whether an error belongs to a decade, but for rounding at its limits."""
    if name.startswith("<"):
        return error < 10.0**-12 * 1.0001
    low = float(name)
    return low * 0.9999 <= error and (error < low * 10.001 or low == 10.0**4)


class TestEvaluator:
    """Tolerances by output, through the evaluator."""

    @pytest.fixture
    def two(self, problems: Any) -> Any:
        spec = TensorSpec(shape=["n", "k"], dtype="float32")
        return problems.definition(outputs={"y": spec, "z": spec})

    def judge(self, two: Any, problems: Any, config: Any, y: Any, z: Any) -> Check:
        trial = Trial(1, 5, [], [torch.ones(4, 3), torch.ones(4, 3)])
        return DefaultEvaluator().check(two, problems.workload(), trial, [[y, z]], config)

    def test_cap(self, two: Any, problems: Any, settings: Any) -> None:
        tolerance = Tolerance(required_matched_ratio=0.5, max_error_cap=2.0)
        config = settings(tolerances={"y": tolerance})
        actual = torch.ones(4, 3)
        actual[0, 0] = 2.5
        assert self.judge(two, problems, config, actual, torch.ones(4, 3)).passed
        actual[0, 0] = 3.5
        failed = self.judge(two, problems, config, actual, torch.ones(4, 3))
        assert not failed.passed
        assert "more than the cap of 2" in failed.message
        assert "(0.916667 >= 0.5)" in failed.message

    @pytest.mark.parametrize("kind", ["atol", "rtol"])
    def test_each_output_has_its_own(
        self, two: Any, problems: Any, settings: Any, kind: str
    ) -> None:
        config = settings(tolerances={"z": Tolerance(**{kind: 1.0})})
        off = torch.full((4, 3), 1.5)
        assert self.judge(two, problems, config, torch.ones(4, 3), off).passed
        failed = self.judge(two, problems, config, off, off)
        assert failed.status == EvaluationStatus.INCORRECT_NUMERICAL
        assert "output 'y'" in failed.message
        assert "output 'z'" not in failed.message

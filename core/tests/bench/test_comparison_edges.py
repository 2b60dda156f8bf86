"""Comparing what is not plain float32: odd types, huge integers, pieces, caps; and histograms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench import DefaultEvaluator
from flashinfer_bench.bench.evaluators import Check, Trial
from flashinfer_bench.bench.judge import correctness, histogram
from flashinfer_bench.bench.judge.correctness import Comparison, compare
from flashinfer_bench.bench.judge.histogram import HIGHEST, LOWEST, error_histogram
from flashinfer_bench.data import EvaluationStatus, OutputTolerance, TensorSpec, Tolerance

NAN, INF = math.nan, math.inf
FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)


class TestNonFinite:
    """NaN and inf are values with a place, whatever is next to them."""

    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, NAN, INF, -INF])

    @given(st.lists(st.tuples(special, special), min_size=1, max_size=12))
    def test_no_tolerance_makes_up_for_them(self, values: list[tuple[float, float]]) -> None:
        actual, expected = (torch.tensor(side) for side in zip(*values, strict=True))
        found = compare(actual, expected, atol=1e30, rtol=1e30)
        same = [a == e or (a != a and e != e) for a, e in values]
        finite = [math.isfinite(a) and math.isfinite(e) for a, e in values]
        wrong = sum(not s and not f for s, f in zip(same, finite, strict=True))
        assert found.nonfinite_mismatches == wrong
        assert found.passes(1e-9) is (wrong == 0)

    def test_nan_of_another_sign_and_payload_is_nan(self) -> None:
        bits = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32)
        found = compare(bits.view(torch.float32), torch.full((3,), NAN), atol=0.0, rtol=0.0)
        assert found.matched == 3

    def test_zeros_of_both_signs_are_equal(self) -> None:
        found = compare(torch.tensor([-0.0]), torch.tensor([0.0]), atol=0.0, rtol=0.0)
        assert (found.matched, found.max_absolute_error) == (1, 0.0)

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


class TestComplex:
    def test_both_parts_count(self) -> None:
        expected = torch.tensor([1 + 2j, 3 - 4j])
        actual = torch.tensor([1 + 2j, 3 + 4j])
        found = compare(actual, expected, atol=1e-3, rtol=1e-3)
        assert (found.elements, found.matched) == (4, 3)
        assert found.max_absolute_error == 8.0
        assert found.first_failing is not None
        assert found.first_failing.index == (1, 1)

    def test_conjugate_views(self) -> None:
        values = torch.tensor([1 + 2j])
        assert compare(values.conj(), torch.tensor([1 - 2j]), atol=0.0, rtol=0.0).matched == 2


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

    def test_small_unsigned_ones_equal_signed_ones(self) -> None:
        actual, expected = torch.tensor([7, 8], dtype=torch.uint64), torch.tensor([7, 9])
        assert compare(actual, expected, atol=0.0, rtol=0.0).matched == 1


@pytest.mark.skipif(FLOAT4 is None, reason="torch has no float4")
class TestFloat4:
    @given(st.binary(min_size=1, max_size=40), st.data())
    @settings(max_examples=40)
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

    def test_one_odd_piece_does_not_change_the_others(self) -> None:
        count = 2 * correctness._CHUNK
        expected = torch.ones(count)
        actual = expected * 1.5
        expected[0] = actual[0] = NAN
        found = compare(actual, expected, atol=0.0, rtol=0.6)
        assert found.passes(1.0)
        assert found.max_absolute_error == 0.5


class TestCap:
    @given(
        st.lists(st.floats(0, 4, width=32), min_size=1, max_size=20),
        st.floats(0, 4),
        st.floats(0.01, 1),
    )
    def test_no_element_may_be_worse(self, errors: list[float], cap: float, ratio: float) -> None:
        actual = torch.tensor(errors)
        found = compare(actual, torch.zeros_like(actual), atol=1.0, rtol=0.0)
        share = sum(error <= 1.0 for error in actual.tolist()) / len(errors)
        assert found.passes(ratio, cap) is (share >= ratio and float(actual.max()) <= cap)

    def test_without_one(self) -> None:
        assert Comparison(4, 3, 1e300, 1.0, 0, None).passes(0.75)


class TestHistogram:
    def test_by_decade(self) -> None:
        expected = torch.full((6,), 100.0, dtype=torch.float64)
        errors = torch.tensor([0.0, 1e-14, 2e-3, 5e-3, 0.5, 9e7], dtype=torch.float64)
        found = error_histogram(expected + errors, expected)
        assert found["absolute"] == {"<1e-12": 2, "1e-03": 2, "1e-01": 1, "1e+04": 1}
        assert found["relative"] == {"<1e-12": 2, "1e-05": 2, "1e-03": 1, "1e+04": 1}

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

    def test_integers(self) -> None:
        found = error_histogram(torch.tensor([1, 2, 13]), torch.tensor([1, 1, 1]))
        assert found["absolute"] == {"<1e-12": 1, "1e+00": 1, "1e+01": 1}

    def test_of_huge_ones_a_part_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(correctness, "_CHUNK", 10)
        monkeypatch.setattr(histogram, "_PIECES", 4)
        found = error_histogram(torch.ones(95), torch.zeros(95))
        assert sum(found["absolute"].values()) == 35  # pieces 0, 3, 6 and the short last one
        assert set(found["absolute"]) == {"1e+00"}

    def test_nothing(self) -> None:
        empty = torch.zeros(0)
        assert error_histogram(empty, empty) == {"absolute": {}, "relative": {}}


def near_decade(error: float, name: str) -> bool:
    """Whether an error belongs to a decade, or is within 2 % of its limits."""
    if name.startswith("<"):
        return error < 10.0**LOWEST * 1.02
    low = float(name)
    return low * 0.98 <= error and (error < low * 10.2 or low == 10.0**HIGHEST)


class TestEvaluator:
    """Tolerances by output, through the evaluator."""

    @pytest.fixture
    def two(self, problems: Any) -> Any:
        spec = TensorSpec(shape=["n", "k"], dtype="float32")
        return problems.definition(outputs={"y": spec, "z": spec})

    def judge(self, two: Any, problems: Any, config: Any, y: Any, z: Any) -> Check:
        trial = Trial(1, 5, [], [torch.ones(4, 3), torch.ones(4, 3)])
        return DefaultEvaluator().check(two, problems.workload(), trial, [[y, z]], config)

    def test_each_output_has_its_own(self, two: Any, problems: Any, settings: Any) -> None:
        config = settings(tolerances={"z": Tolerance(atol=1.0)})
        off = torch.full((4, 3), 1.5)
        assert self.judge(two, problems, config, torch.ones(4, 3), off).passed
        failed = self.judge(two, problems, config, off, off)
        assert failed.status == EvaluationStatus.INCORRECT_NUMERICAL
        assert "output 'y'" in failed.message
        assert "output 'z'" not in failed.message

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

    def test_histogram_is_of_the_worst_output(self, two: Any, problems: Any, settings: Any) -> None:
        config = settings(tightened={"z": "a reason"})
        wrong = torch.ones(4, 3)
        wrong[0] = 3.0
        found = self.judge(two, problems, config, torch.full((4, 3), 1.001), wrong).correctness
        assert found is not None
        assert found.extra is not None
        assert found.extra["error_histogram"] == {
            "output": "z",
            "absolute": {"<1e-12": 9, "1e+00": 3},
            "relative": {"<1e-12": 9, "1e+00": 3},
        }
        assert found.extra["tightened"] == {"z": "a reason"}
        assert found.extra["first_failing"]["output"] == "z"

    def test_ratio_of_the_output_that_failed(self, two: Any, problems: Any, settings: Any) -> None:
        own = OutputTolerance(required_matched_ratio=0.99).model_dump()
        config = settings(required_matched_ratio=0.5, tolerances={"y": Tolerance(**own)})
        actual = torch.ones(4, 3)
        actual[0, 0] = 9.0
        found = self.judge(two, problems, config, actual, torch.ones(4, 3))
        assert not found.passed
        assert found.correctness is not None
        assert (found.correctness.extra or {})["required_matched_ratio"] == 0.99

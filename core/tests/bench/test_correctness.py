import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_tests import forked
from flashinfer_bench.bench import DefaultEvaluator, correctness
from flashinfer_bench.bench.correctness import OutputSpec, compare, find_problem
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import EvaluationStatus, TensorSpec, Tolerance

NAN, INF = math.nan, math.inf

# ------------------------------------------------------------------ the rule, spelled out slowly


def matches(actual, expected, atol, rtol):
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    if math.isinf(expected) or math.isinf(actual):
        return actual == expected
    error = abs(actual - expected)
    return error <= atol or error / max(abs(expected), 1e-8) <= rtol


def oracle(actual, expected, atol, rtol):
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


def summary(found):
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
    def test_float32(self, values, atol, rtol):
        actual, expected = (list(side) for side in zip(*values, strict=True))
        left, right = torch.tensor(actual), torch.tensor(expected)
        found = compare(left, right, atol=atol, rtol=rtol)
        assert summary(found) == oracle(left.tolist(), right.tolist(), atol, rtol)

    @given(st.data(), tolerances)
    def test_narrow_floats(self, data, tolerance):
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
    def test_nothing_to_compare(self, shape, dtype):
        empty = torch.empty(shape, dtype=dtype)
        found = compare(empty, empty.clone(), atol=0.0, rtol=0.0)
        assert (found.elements, found.matched_ratio, found.max_absolute_error) == (0, 1.0, 0.0)
        assert found.passes(1.0)
        assert found.first_failing is None

    def test_reference_may_be_of_a_wider_type(self):
        expected = torch.tensor([1.001, 2.0], dtype=torch.float64)
        found = compare(expected.to(torch.bfloat16), expected, atol=1e-2, rtol=0.0)
        assert found.matched == 2
        assert found.max_absolute_error == pytest.approx(0.001)

    def test_extremes_do_not_wrap_around(self):
        low, high = -(2**63), 2**63 - 1
        found = compare(torch.tensor([low]), torch.tensor([high]), atol=0.0, rtol=0.0)
        assert found.max_absolute_error == pytest.approx(2.0**64)


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_the_first_mismatch_is_the_first_in_row_major_order(shape, data):
    expected = torch.zeros(shape)
    actual = expected.clone()
    place = st.tuples(*(st.integers(0, size - 1) for size in shape))
    places = data.draw(st.lists(place, min_size=1, max_size=3))
    for index in places:
        actual[index] = 5.0 + sum(index)
    first = compare(actual, expected, atol=1e-3, rtol=1e-3).first_failing
    assert (first.index, first.actual) == (min(places), 5.0 + sum(min(places)))


def test_a_mismatch_imports_no_symbolic_algebra():
    program = (
        "import sys, torch; from flashinfer_bench.bench.correctness import compare;"
        "sys.modules.pop('sympy', None); compare(torch.ones(2), torch.zeros(2), atol=0, rtol=0);"
        "print('sympy' in sys.modules)"
    )
    assert forked.run([sys.executable, "-c", program], check=True).stdout == "False\n"


# ----------------------------------------------------------------- shapes, types and numbers

SHAPE, DTYPE = EvaluationStatus.INCORRECT_SHAPE, EvaluationStatus.INCORRECT_DTYPE
MATRIX = OutputSpec("y", (2, 3), torch.float32)
ACROSS = OutputSpec("lse", (), torch.float32)
COUNT = OutputSpec("count", (), torch.int32)
FLAG = OutputSpec("flag", (), torch.bool)


def status_of(outputs, *specs, **options):
    problem = find_problem(outputs, specs, **options)
    return None if problem is None else problem.status


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([torch.zeros(2, 3)], None),
        ([], SHAPE),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], SHAPE),
        ([torch.zeros(3, 2)], SHAPE),
        ([torch.zeros(2, 3, dtype=torch.float64)], DTYPE),
        ([1.0], SHAPE),
        ([torch.zeros(3, 2, dtype=torch.int32)], SHAPE),
    ],
)
def test_tensors(outputs, expected):
    assert status_of(outputs, MATRIX) == expected


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (ACROSS, 1.5, None),
        (ACROSS, 2, None),
        (ACROSS, float("nan"), None),
        (ACROSS, True, DTYPE),
        (ACROSS, torch.tensor(1.5), None),
        (ACROSS, torch.tensor([1.5]), SHAPE),
        (ACROSS, 10**30, DTYPE),
        (COUNT, 3, None),
        (COUNT, 3.0, DTYPE),
        (COUNT, True, DTYPE),
        (COUNT, 2**63, DTYPE),
        (COUNT, -(2**63), None),
        (FLAG, True, None),
        (FLAG, 1, DTYPE),
        (FLAG, "yes", DTYPE),
        (COUNT, None, DTYPE),
        (OutputSpec("z", (), torch.complex64), 1.0, DTYPE),
    ],
)
def test_scalars(spec, value, expected):
    assert status_of([value], spec) == expected


# --------------------------------------------- odd types, huge integers, pieces, caps

FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)


class TestNonFinite:
    """NaN and inf are values with a place, whatever is next to them."""

    def test_float64_that_overflows_is_finite_but_wrong(self):
        big = torch.tensor([1e308], dtype=torch.float64)
        found = compare(-big, big, atol=1e300, rtol=1.0)
        assert (found.matched, found.nonfinite_mismatches) == (0, 0)
        assert found.max_absolute_error == INF

    def test_nan_of_another_sign_and_payload_is_nan(self):
        bits = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32)
        found = compare(bits.view(torch.float32), torch.full((3,), NAN), atol=0.0, rtol=0.0)
        assert found.matched == 3


def test_complex_both_parts_count():
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
    def test_every_bit_counts(self, values):
        def clamp(value):
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
    def test_unsigned_ones_do_not_wrap_around(self, pair):
        actual, expected = torch.tensor([pair[0]], dtype=torch.uint64), torch.tensor([pair[1]])
        assert compare(actual, expected, atol=0.0, rtol=0.0).matched == 0
        assert compare(expected, actual, atol=0.0, rtol=0.0).matched == 0
        assert compare(actual, actual.clone(), atol=0.0, rtol=0.0).matched == 1


@pytest.mark.skipif(FLOAT4 is None, reason="torch has no float4")
class TestFloat4:
    def test_each_half_byte_is_an_element(self):
        actual, expected = (
            torch.tensor(codes, dtype=torch.uint8).view(FLOAT4)
            for codes in ([0x21, 0x43], [0x21, 0x42])
        )
        found = compare(actual, expected, atol=0.0, rtol=0.0)
        assert (found.elements, found.matched) == (4, 3)
        assert found.first_failing is not None
        assert (found.first_failing.index, found.first_failing.expected) == ((2,), 1.0)

    @given(st.binary(min_size=1, max_size=40), st.data())
    def test_pieces_change_nothing(self, codes, data):
        expected = torch.frombuffer(bytearray(codes), dtype=torch.uint8).view(FLOAT4)
        changed = bytearray(codes)
        changed[data.draw(st.integers(0, len(codes) - 1))] ^= data.draw(st.integers(0, 255))
        actual = torch.frombuffer(changed, dtype=torch.uint8).view(FLOAT4)
        whole = compare(actual, expected, atol=0.1, rtol=0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(correctness, "_CHUNK", 2 * data.draw(st.integers(1, 9)))
            assert compare(actual, expected, atol=0.1, rtol=0.0) == whole
        assert whole.elements == 2 * len(codes)


def test_pieces_the_first_failing_place_in_a_later_piece():
    count = 3 * correctness._CHUNK + 5
    expected = torch.zeros(count)
    actual = expected.clone()
    actual[[2 * correctness._CHUNK + 1, count - 1]] = 1.0
    found = compare(actual, expected, atol=0.1, rtol=0.1)
    assert (found.elements, found.matched) == (count, count - 2)
    assert found.first_failing is not None
    assert found.first_failing.index == (2 * correctness._CHUNK + 1,)


class TestEvaluator:
    """Tolerances by output, through the evaluator."""

    @pytest.fixture
    def two(self, problems):
        spec = TensorSpec(shape=["n", "k"], dtype="float32")
        return problems.definition(outputs={"y": spec, "z": spec})

    def judge(self, two, problems, config, y, z):
        trial = Trial(1, 5, [], [torch.ones(4, 3), torch.ones(4, 3)])
        return DefaultEvaluator().check(two, problems.workload(), trial, [[y, z]], config)

    def test_cap(self, two, problems, settings):
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
        strict = settings(tolerances={"y": Tolerance(required_matched_ratio=0.95)})
        failed = self.judge(two, problems, strict, actual, torch.ones(4, 3))
        assert "(0.916667 < 0.95)" in failed.message

    @pytest.mark.parametrize("kind", ["atol", "rtol"])
    def test_each_output_has_its_own(self, two, problems, settings, kind):
        config = settings(tolerances={"z": Tolerance(**{kind: 1.0})})
        off = torch.full((4, 3), 1.5)
        assert self.judge(two, problems, config, torch.ones(4, 3), off).passed
        failed = self.judge(two, problems, config, off, off)
        assert failed.status == EvaluationStatus.INCORRECT_NUMERICAL
        assert "output 'y'" in failed.message
        assert "output 'z'" not in failed.message
        worst = self.judge(two, problems, config, torch.ones(4, 3), 2 * off).correctness.extra
        assert (worst["first_failing"]["output"], worst["matched_ratio"]) == ("z", 0.0)

"""The floor is under every honest latency, and as high as is certain."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fib_judge.calibration import Ceilings
from fib_judge.floor import (
    MARGIN,
    TABLE,
    TABLE_VERSION,
    Floor,
    LeastWork,
    least_work,
    physics_floor,
)
from flashinfer_bench.data import AxisConst, AxisVar, Definition, TensorSpec

CEILINGS = Ceilings(
    device="cpu",
    hardware="x",
    bytes_per_s={1 << 14: 1e11, 1 << 24: 2e10},
    flops_per_s={"float32": 1e12, "float16": 2e12},
    call_ms=1e-3,
)


def definition(op_type, inputs, outputs, **const):
    """Make one whose axes are those of its tensors; the named ones are constant."""
    tensors = [*inputs.values(), *outputs.values()]
    names = {axis for shape, _ in tensors for axis in shape or () if not axis.isdigit()}
    return Definition(
        name="d",
        op_type=op_type,
        axes={
            name: AxisConst(value=const[name]) if name in const else AxisVar()
            for name in sorted(names)
        },
        inputs={k: TensorSpec(shape=shape, dtype=dtype) for k, (shape, dtype) in inputs.items()},
        outputs={k: TensorSpec(shape=shape, dtype=dtype) for k, (shape, dtype) in outputs.items()},
        reference="def run(*inputs):\n    return inputs[0]\n",
    )


def gemm(dtype="float16", **const):
    return definition(
        "gemm",
        {"A": (["M", "K"], dtype), "B": (["N", "K"], dtype)},
        {"C": (["M", "N"], dtype)},
        **const,
    )


def norm(rows="rows"):
    return definition(
        "rmsnorm",
        {"x": ([rows, "h"], "bfloat16"), "w": (["h"], "bfloat16"), "eps": (None, "float32")},
        {"y": ([rows, "h"], "bfloat16")},
        h=128,
    )


MKN = {"M": 3, "N": 5, "K": 7}
A, B, C = ["M", "K"], ["N", "K"], ["M", "N"]
PRODUCT = {"A": (A, "int8"), "B": (B, "int8")}
CACHE = ["slots", "d"]
PACKED = definition("elementwise", {"x": (["n"], "float4_e2m1")}, {"y": (["n"], "float4_e2m1")})
WORK = {
    "a product": (gemm(), MKN, LeastWork(2 * (21 + 35 + 15), 2 * 3 * 5 * 7, ("float16",) * 2)),
    "a batched product": (
        definition(
            "gemm",
            {"A": (["b", *A], "float32"), "B": (["b", "K", "N"], "float32")},
            {"C": (["b", *C], "float32")},
        ),
        {"b": 2, **MKN},
        LeastWork(4 * 2 * (21 + 35 + 15), 2 * 2 * 3 * 5 * 7, ("float32",) * 2),
    ),
    "a bias is read but computes nothing": (
        definition("gemm", {**PRODUCT, "bias": (["N"], "float32")}, {"C": (C, "float32")}),
        MKN,
        LeastWork(21 + 35 + 20 + 60, 2 * 3 * 5 * 7, ("int8",) * 2),
    ),
    "a normalisation": (norm(), {"rows": 10}, LeastWork(2 * (1280 + 128 + 1280))),
    "packed types take half a byte": (PACKED, {"n": 10}, LeastWork(10)),
    "a byte is the least": (PACKED, {"n": 3}, LeastWork(4)),
    "scalars come with the call": (
        definition("moe", {"x": (["n"], "float32")}, {"y": (None, "float32")}),
        {"n": 10},
        LeastWork(0),
    ),
    "experts are not all asked": (
        definition(
            "moe",
            {"x": (["t", "h"], "bfloat16"), "w": (["experts", "h", "h2"], "bfloat16")},
            {"y": (["t", "h2"], "bfloat16")},
        ),
        {"t": 1, "h": 8, "h2": 8, "experts": 256},
        LeastWork(16),
    ),
    "an unknown operation may return a view": (
        definition("transpose", {"x": (["a", "b"], "float32")}, {"y": (["b", "a"], "float32")}),
        {"a": 100, "b": 100},
        LeastWork(0),
    ),
    "an unknown operation that changes the type has to write": (
        definition("cast", {"x": (["n"], "float32")}, {"y": (["n"], "float16")}),
        {"n": 100},
        LeastWork(200),
    ),
    "a state that is updated in place need not be written whole": (
        definition(
            "mamba_ssu",
            {"state": (CACHE, "bfloat16"), "x": (["batch", "d"], "float32")},
            {"new_state": (CACHE, "bfloat16"), "out": (["batch", "d"], "float16")},
        ),
        {"slots": 10**6, "batch": 1, "d": 8},
        LeastWork(16),
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_what_must_be_done(name):
    made, axes, work = WORK[name]
    assert least_work(made, axes) == work


class TestWhatIsNotCertain:
    """Each of these has led a bound astray somewhere."""

    def test_a_depthwise_convolution_is_no_product_of_all_channels(self):
        depthwise = definition(
            "gemm",
            {"x": (["b", "c", "t"], "float16"), "w": (["c", "k"], "float16")},
            {"y": (["b", "c", "t"], "float16")},
            c=768,
            k=4,
        )
        assert least_work(depthwise, {"b": 1, "t": 64}).flops == 0

    @pytest.mark.parametrize("op_type", ["gqa_paged", "mla_paged", "dsa_paged", "nsa_paged"])
    def test_a_paged_cache_does_not_count_as_it_is_allocated(self, op_type):
        cache = ["pages", "page_size", "heads", "dim"]
        paged = definition(
            op_type,
            {
                "q": (["batch", "heads", "dim"], "bfloat16"),
                "k_cache": (cache, "bfloat16"),
                "v_cache": (cache, "bfloat16"),
                "kv_indices": (["used"], "int32"),
            },
            {
                "out": (["batch", "heads", "dim"], "bfloat16"),
                "lse": (["batch", "heads"], "float32"),
            },
            page_size=16,
            heads=8,
            dim=128,
        )
        small = least_work(paged, {"batch": 4, "pages": 1, "used": 1})
        large = least_work(paged, {"batch": 4, "pages": 10**6, "used": 1})
        assert small == large == LeastWork(4 * 8 * 128 * 2 + 4 * 8 * 4)

    @pytest.mark.parametrize("op_type", ["gemm", "rmsnorm", "elementwise"])
    @pytest.mark.parametrize("dtype", ["int32", "int64", "int16", "bool"])
    def test_an_input_that_selects_makes_others_uncertain(self, op_type, dtype):
        grouped = definition(
            op_type,
            {
                "x": (["m", "k"], "float16"),
                "w": (["n", "k"], "float16"),
                "which": (["m"], dtype),
            },
            {"y": (["m", "n"], "float16")},
        )
        assert least_work(grouped, {"m": 2, "k": 10**6, "n": 3}) == LeastWork(2 * 3 * 2)

    @pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
    def test_a_factor_that_may_be_zero_makes_others_uncertain(self, dtype):
        scaled = definition(
            "gemm",
            {"A": (["M", "K"], "float16"), "B": (["N", "K"], "float16"), "alpha": (None, dtype)},
            {"C": (["M", "N"], "float16")},
        )
        assert least_work(scaled, {"M": 3, "N": 5, "K": 7}) == LeastWork(30)

    @pytest.mark.parametrize(
        ("first", "second", "result"),
        [
            (["n", "n"], ["n", "n"], ["n", "n"]),  # which axis is which?
            (["m", "64"], ["n", "64"], ["m", "n"]),  # equal sizes need not be the same axis
            (["m", "k"], ["n", "j"], ["m", "n"]),  # each summed by itself
            (["m", "k"], ["m", "k"], ["m", "k"]),  # element by element
            (["m", "k"], ["n", "k"], ["m", "n", "k"]),  # nothing is summed
            (["m", "k"], ["k", "k2"], ["k2"]),  # the first factor can be summed beforehand
            (["m", "k"], ["m", "k"], ["m"]),  # a dot product for each row
            (["m", "k"], ["n", "k"], ["m", "n", "z"]),  # copies of a product
        ],
    )
    def test_other_contractions_are_not_charged(self, first, second, result):
        other = definition(
            "gemm", {"A": (first, "float32"), "B": (second, "float32")}, {"C": (result, "float32")}
        )
        assert least_work(other, dict.fromkeys(other.var_axes, 16)).flops == 0


class TestFloor:
    def test_bytes_decide(self):
        found = physics_floor(norm(), {"rows": 10**6}, CEILINGS)
        nbytes = 2 * (2 * 128 * 10**6 + 128)
        assert found == Floor(nbytes / 2e10 * 1e3 / MARGIN, nbytes, 0, "bytes", TABLE_VERSION)

    def test_operations_decide(self):
        found = physics_floor(gemm(), {"M": 4096, "N": 4096, "K": 4096}, CEILINGS)
        assert found.limited_by == "flops"
        assert found.ms == pytest.approx(2 * 4096**3 / 2e12 * 1e3 / MARGIN)

    def test_the_call_decides(self):
        found = physics_floor(norm(), {"rows": 1}, CEILINGS)
        assert (found.limited_by, found.ms) == ("call", 1e-3 / MARGIN)

    def test_a_busy_machine_makes_no_floor(self):
        busy = replace(CEILINGS, settled=False)
        found = physics_floor(gemm(), {"M": 4096, "N": 4096, "K": 4096}, busy)
        assert (found.ms, found.limited_by) == (0.0, "nothing")
        assert found.flops == 2 * 4096**3


SIZES = st.integers(0, 1 << 20)
RATE = st.floats(min_value=1.0, max_value=1e18)
SOME_CEILINGS = st.builds(
    Ceilings,
    device=st.just("cpu"),
    hardware=st.just("x"),
    bytes_per_s=st.dictionaries(st.integers(1, 1 << 40), RATE, max_size=6),
    flops_per_s=st.dictionaries(st.sampled_from(["float32", "float16", "int8"]), RATE),
    call_ms=st.floats(min_value=0, max_value=1e3),
)
DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "float8_e4m3fn", "float4_e2m1", "bool")
SHAPES = st.none() | st.lists(st.sampled_from(["a", "b", "c", "7"]), max_size=4)
TENSORS = st.tuples(SHAPES, st.sampled_from(DTYPES))


@st.composite
def definitions(draw):
    inputs = draw(st.lists(TENSORS, min_size=1, max_size=4))
    outputs = draw(st.lists(TENSORS, min_size=1, max_size=3))
    return definition(
        draw(st.sampled_from([*TABLE, "unknown"])),
        {f"i{index}": tensor for index, tensor in enumerate(inputs)},
        {f"o{index}": tensor for index, tensor in enumerate(outputs)},
    )


@settings(deadline=None)
@given(definitions(), st.tuples(SIZES, SIZES, SIZES), SOME_CEILINGS)
def test_whatever_comes_the_floor_is_a_finite_time(made, sizes, ceilings):
    axes = dict(zip("abc", sizes, strict=True))
    found = physics_floor(made, axes, ceilings)
    assert math.isfinite(found.ms)
    assert found.ms >= 0
    assert min(found.nbytes, found.flops) >= 0
    assert found.limited_by in ("bytes", "flops", "call")

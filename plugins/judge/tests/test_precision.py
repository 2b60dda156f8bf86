"""Tolerances by dtype on products: another order of summation passes, a lower precision does not.

What passes within the default only, is marked.
"""

import pytest
import torch

from fib_judge.decidability import tightened
from flashinfer_bench.bench import BenchmarkConfig, DefaultEvaluator
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import Definition, TensorSpec, Workload

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
CHEAPER = {
    torch.float32: torch.bfloat16,
    torch.float16: torch.float8_e4m3fn,
    torch.bfloat16: torch.float8_e4m3fn,
}
dtypes = pytest.mark.parametrize("dtype", list(NAMES), ids=list(NAMES.values()))


def passes(actual, expected, dtype):
    """Judge one output by dtype; see that the default marks it rightly if it passes."""
    axes = {f"a{index}": {"type": "var"} for index in range(expected.dim())}
    name = NAMES[dtype]
    definition = Definition(
        name="d",
        op_type="o",
        axes=axes,
        inputs={"x": TensorSpec(shape=["a0"], dtype=name)},
        outputs={"y": TensorSpec(shape=list(axes), dtype=str(expected.dtype)[6:])},
        reference="def run(x): pass",
    )
    sizes = dict(zip(axes, expected.shape, strict=True))
    workload = Workload(axes=sizes, inputs={}, uuid="w")
    trial = Trial(0, 0, [torch.zeros(expected.shape[0])], [expected])
    evaluator = DefaultEvaluator()
    found = []
    for tolerance in ("dtype", "fixed"):
        config = BenchmarkConfig(tolerance=tolerance).resolve_eval_config(definition)
        config = tightened(definition, workload, [trial], evaluator, config)
        found.append(evaluator.check(definition, workload, trial, [[actual]], config))
    by_dtype, by_default = found
    assert "loose_tolerance" not in by_dtype.correctness.extra
    marked = "loose_tolerance" in by_default.correctness.extra
    assert marked == (by_default.passed and not by_dtype.passed)
    assert by_default.passed or not by_dtype.passed
    return by_dtype.passed


def cheap(dtype, *values):
    """Return values as the next cheaper type holds them, in float32."""
    return [value.to(CHEAPER[dtype]).float() for value in values]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestMatmul:
    """Sums of K products."""

    @pytest.fixture(params=[64, 1024, 8192])
    def factors(self, request):
        return drawn(16, request.param), drawn(request.param, 32, seed=1)

    @dtypes
    def test_other_orders_pass(self, factors, dtype):
        a, b = (factor.to(dtype) for factor in factors)
        wide = a.float(), b.float()
        expected = (wide[0] @ wide[1]).to(dtype)
        backwards = (wide[0].flip(1) @ wide[1].flip(0)).to(dtype)
        assert passes(backwards, expected, dtype)
        assert passes(in_tiles(*wide, 32).to(dtype), expected, dtype)
        assert passes(in_tiles(*wide, 1).to(dtype), expected, dtype)
        assert passes((a.double() @ b.double()).to(dtype), expected, dtype)
        assert passes(a @ b, expected, dtype)

    @dtypes
    def test_lower_precision_does_not(self, factors, dtype):
        a, b = (factor.to(dtype) for factor in factors)
        expected = (a.float() @ b.float()).to(dtype)
        low = cheap(dtype, a, b)
        assert not passes((low[0] @ low[1]).to(dtype), expected, dtype)

    def test_rounding_the_result_alone_does_not(self, factors):
        expected = factors[0] @ factors[1]
        assert not passes(expected.bfloat16().float(), expected, torch.float32)

    def test_a_dropped_term_of_many_does_not(self, factors):
        a, b = factors
        assert not passes(a[:, 1:] @ b[1:], a @ b, torch.float32)


def in_tiles(a, b, tile):
    """Sum up tile by tile, as a kernel does."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], tile):
        total += a[:, start : start + tile] @ b[start : start + tile]
    return total

"""Tolerances by dtype on real computations: another order passes, a lower precision does not.

Each computation is held against one of another order of summation, another formula or another
place of rounding, as honest kernels have them, and against one that computes in the next cheaper
type. What passes within the default only, is marked.
"""

from __future__ import annotations

import math

import pytest
import torch

from fib_judge.decidability import tightened
from flashinfer_bench.bench import BenchmarkConfig, DefaultEvaluator
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import Definition, TensorSpec, Workload

LOG2E = 1.4426950408889634
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


class TestRmsNorm:
    @pytest.fixture(params=[512, 8192])
    def rows(self, request):
        return drawn(32, request.param), drawn(request.param, seed=1)

    @staticmethod
    def normed(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    @dtypes
    def test_other_roundings_pass(self, rows, dtype):
        x, weight = (row.to(dtype) for row in rows)
        expected = self.normed(x.float(), weight.float()).to(dtype)
        twice = self.normed(x.float(), torch.ones(x.shape[-1])).to(dtype) * weight
        assert passes(twice, expected, dtype)
        one_by_one = x.float().square().cumsum(-1)[:, -1:] / x.shape[-1]
        other = x.float() / torch.sqrt(one_by_one + 1e-6) * weight.float()
        assert passes(other.to(dtype), expected, dtype)

    @dtypes
    def test_lower_precision_does_not(self, rows, dtype):
        x, weight = (row.to(dtype) for row in rows)
        expected = self.normed(x.float(), weight.float()).to(dtype)
        assert not passes(
            self.normed(cheap(dtype, x)[0], weight.float()).to(dtype), expected, dtype
        )


class TestAttention:
    """Outputs shrink with the number of keys: 8192 of them leave 0.02."""

    @pytest.fixture(params=[64, 1024, 8192])
    def tensors(self, request):
        keys = request.param
        return drawn(2, 4, 64), drawn(2, keys, 64, seed=1), drawn(2, keys, 64, seed=2)

    @staticmethod
    def whole(q, k, v):
        logits = q.float() @ k.float().mT / math.sqrt(64)
        lse = torch.logsumexp(logits, -1)
        return torch.exp(logits - lse[..., None]) @ v.float(), lse * LOG2E

    @staticmethod
    def in_blocks(q, k, v):
        """Go over the keys once, with weights rounded to the inputs' type."""
        top, total = torch.full(q.shape[:2], -math.inf), torch.zeros(q.shape[:2])
        summed = torch.zeros(q.shape)
        for start in range(0, k.shape[1], 64):
            block = slice(start, start + 64)
            logits = q.float() @ k[:, block].float().mT / math.sqrt(64) * LOG2E
            new = torch.maximum(top, logits.amax(-1))
            weights = torch.exp2(logits - new[..., None])
            total = total * torch.exp2(top - new) + weights.sum(-1)
            summed = summed * torch.exp2(top - new)[..., None]
            summed = summed + weights.to(q.dtype).float() @ v[:, block].float()
            top = new
        return summed / total[..., None], torch.log2(total) + top

    @dtypes
    def test_blocks_pass(self, tensors, dtype):
        q, k, v = (tensor.to(dtype) for tensor in tensors)
        expected, actual = self.whole(q, k, v), self.in_blocks(q, k, v)
        assert passes(actual[0].to(dtype), expected[0].to(dtype), dtype)
        assert passes(actual[1], expected[1], dtype)

    @dtypes
    def test_lower_precision_does_not(self, tensors, dtype):
        q, k, v = (tensor.to(dtype) for tensor in tensors)
        expected = self.whole(q, k, v)[0].to(dtype)
        assert not passes(self.whole(*cheap(dtype, q, k, v))[0].to(dtype), expected, dtype)

    def test_natural_logarithms_do_not(self, tensors):
        lse = self.whole(*tensors)[1]
        assert not passes(lse / LOG2E, lse, torch.bfloat16)


FORMULAS = {
    "silu": (torch.nn.functional.silu, lambda x: x / (1 + torch.exp2(-x * LOG2E))),
    "gelu": (
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda x: x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "exp": (torch.exp, lambda x: torch.exp2(x * LOG2E)),
    "log": (lambda x: torch.log(x.abs()), lambda x: torch.log2(x.abs()) / LOG2E),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name):
    right, other = FORMULAS[name]
    x = drawn(20_000) * 4
    assert passes(other(x), right(x), torch.float32)
    assert not passes(right(x.bfloat16()).float(), right(x), torch.float32)

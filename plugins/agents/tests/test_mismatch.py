"""Maps of what is wrong, and simple relations; from tensors alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fib_agents.mismatch import (
    MOST_DIMENSIONS,
    MOST_RANGES,
    grid_of,
    map_mismatch,
    passes,
    relations,
)
from flashinfer_bench.bench.correctness import compare

LIMITS = {"atol": 1e-3, "rtol": 1e-3}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def wrong_at(shape, *index):
    expected = randn(*shape)
    actual = expected.clone()
    actual[index] += 1.0
    found = map_mismatch(actual, expected, axes=[f"d{n}" for n in range(len(shape))], **LIMITS)
    assert found.wrong == int((actual != expected).sum())
    return found


@pytest.mark.parametrize(
    ("shape", "index", "dim", "pattern", "ranges", "block"),
    [
        ((70, 100), (slice(64, None),), 0, "tail", ((64, 70),), 64),
        ((70, 100), (slice(None), slice(96, None)), 1, "tail", ((96, 100),), 32),
        ((70, 100), (slice(None), slice(90, None)), 1, "tail", ((90, 100),), 0),
        ((65, 10), (64,), 0, "last", ((64, 65),), 64),
        ((65, 10), (0,), 0, "first", ((0, 1),), 0),
        ((65, 10), (slice(0, 7),), 0, "head", ((0, 7),), 0),
        ((64, 64), (slice(16, 32), slice(32, 48)), 1, "block", ((32, 48),), 0),
        ((64, 10), (slice(1, None, 4),), 0, "periodic", None, 4),
        ((30, 10), (torch.tensor([2, 3, 11, 12, 20, 29]),), 0, "scattered",
         ((2, 4), (11, 13), (20, 21), (29, 30)), 0),
        ((30, 10), (slice(None),), 0, "all", ((0, 30),), 0),
    ],
)  # fmt: skip
def test_patterns(shape, index, dim, pattern, ranges, block):
    found = wrong_at(shape, *index).dimensions[dim]
    assert (found.pattern, found.block) == (pattern, block)
    assert found.axis == f"d{dim}"
    assert ranges is None or found.ranges == ranges


def test_words():
    assert "beyond the last multiple of 64" in wrong_at((70, 8), slice(64, None)).where
    assert "period 4" in wrong_at((64, 8), slice(1, None, 4)).where
    expected = randn(8, 8)
    actual = expected.clone()
    actual[3] = math.nan
    actual[4, 4] = math.inf
    found = map_mismatch(actual, expected, **LIMITS)
    assert (found.nan, found.inf, found.wrong) == (8, 1, 9)
    assert "8 are NaN; 1 are inf" in found.where
    assert map_mismatch(expected, expected, **LIMITS).where == "nowhere"


X = randn(40, 24)
ROWS = torch.randperm(40, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("kind", "actual", "value"),
    [
        ("constant", torch.zeros(40, 24), 0.0),
        ("constant", torch.full((40, 24), 2.5), 2.5),
        ("transposed", X.T.reshape(40, 24), None),
        ("shifted", X.roll(1, 0), 1.0),
        ("shifted", X.roll(-2, 1), -2.0),
        ("reordered", X[ROWS], None),
        ("repeated", X[torch.arange(40) // 2], None),
        ("negated", -X, -1.0),
        ("scaled", X * 0.125, 0.125),
        ("offset", X + 0.5, 0.5),
        ("row_scaled", X * (1 + torch.rand(40, 1)), None),
        ("row_offset", X + torch.rand(40, 1), None),
        ("column_scaled", X * (1 + torch.rand(24)), None),
        ("column_offset", X + torch.rand(24), None),
        ("clamped", X.clamp(-0.7, 0.7), None),
        ("clamped", X.clamp(min=0.0), 0.0),
    ],
)
def test_relations(kind, actual, value):
    found = relations(actual, X)
    assert found[0].kind == kind, found
    assert value is None or found[0].value == pytest.approx(value)


def test_relations_to_inputs_and_of_integers():
    other = randn(40, 24, seed=5)
    found = relations(other, X + other, {"x": X, "residual": other, "eps": 1e-6})
    assert found[0].kind == "input"
    assert "'residual'" in found[0].text
    whole = torch.randint(-5000, 5000, (200,), generator=torch.Generator().manual_seed(1))
    assert relations(whole.to(torch.int8).long(), whole)[0].value == 256
    assert relations(X.clone(), X) == []
    assert relations(randn(40, 24, seed=9), X) == []
    assert relations(torch.zeros(4), torch.zeros(4)) == []


def test_grids():
    assert grid_of(X.bfloat16().float(), X) == "bfloat16"
    assert grid_of(X.half().float(), X) == "float16"
    assert grid_of(X, X) == ""
    assert grid_of(torch.zeros(40, 24), X) == ""
    assert grid_of(X.bfloat16(), X.bfloat16()) == ""


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@st.composite
def pairs(draw):
    """Return two tensors of one shape and dtype, with NaN, inf and equal parts."""
    shape = draw(st.lists(st.integers(0, 9), max_size=8).filter(lambda s: math.prod(s) <= 2000))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    made = []
    for _ in range(2):
        one = torch.randn(shape, generator=generator) * draw(st.sampled_from([0.0, 1.0, 1e4, 1e30]))
        if draw(st.booleans()):
            odd = torch.rand(shape, generator=generator) < draw(st.floats(0, 1))
            one = one.masked_fill(odd, draw(st.sampled_from([math.nan, math.inf, -math.inf, 0.0])))
        if not (dtype.is_floating_point or dtype.is_complex):
            one = one.nan_to_num(0, 0, 0).clamp(-100, 100)
        made.append(one.to(dtype))
    if draw(st.booleans()):
        kept = torch.rand(shape, generator=generator) < draw(st.floats(0, 1))
        raw = [one.view(torch.uint8) if one.element_size() == 1 else one for one in made]
        made[0] = torch.where(kept, raw[1], raw[0]).view(dtype)
    return made


@settings(max_examples=300, deadline=None)
@given(pairs(), st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from([0.0, 1e-3]))
def test_any_tensors(pair, atol, rtol):
    actual, expected = pair
    known = compare(actual, expected, atol=atol, rtol=rtol)
    assert int(passes(actual, expected, atol=atol, rtol=rtol).sum()) == known.matched
    found = map_mismatch(actual, expected, atol=atol, rtol=rtol)
    assert found.wrong == known.elements - known.matched
    assert found.nan + found.inf <= found.wrong
    assert len(found.dimensions) <= MOST_DIMENSIONS
    for one in found.dimensions:
        assert 1 <= len(one.ranges) <= MOST_RANGES
        assert all(0 <= first < end <= one.size for first, end in one.ranges)
        assert sum(end - first for first, end in one.ranges) >= one.wrong
    assert len(found.where) < 1000
    assert len(relations(actual, expected, {"x": expected})) <= 8
    assert grid_of(actual, expected) in ("", "float8_e4m3fn", "bfloat16", "float16")

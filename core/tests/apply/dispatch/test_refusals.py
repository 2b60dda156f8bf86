"""Calls that the guard has refused, and is not asked about again."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply.dispatch import refusals as refusals_module
from flashinfer_bench.apply.dispatch.devices import Devices
from flashinfer_bench.apply.dispatch.guards import make_guard
from flashinfer_bench.apply.dispatch.layout import Layout
from flashinfer_bench.apply.dispatch.recognition import ByHelper, ByTorch
from flashinfer_bench.apply.dispatch.refusals import Refusals
from flashinfer_bench.apply.dispatch.tensor_guards import tensor_guards


class Own(torch.Tensor):
    """A tensor of another type."""


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor([torch.ones(4), torch.ones(4)])


MAKERS = {
    "plain": lambda: torch.ones(2, 4),
    "taller": lambda: torch.ones(3, 4),
    "wider": lambda: torch.ones(2, 5),
    "flat": lambda: torch.ones(4),
    "double": lambda: torch.ones(2, 4).double(),
    "transposed": lambda: torch.ones(4, 2).t(),
    "slice": lambda: torch.ones(2, 8)[:, ::2],
    "wanting": lambda: torch.ones(2, 4, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 4)),
    "frozen": lambda: torch.nn.Parameter(torch.ones(2, 4), requires_grad=False),
    "subclass": lambda: torch.ones(2, 4).as_subclass(Own),
    "negated": lambda: torch._neg_view(torch.ones(2, 4)),
    "sparse": lambda: torch.ones(2, 4).to_sparse(),
    "meta": lambda: torch.ones(2, 4, device="meta"),
    "nested": nested,
    "nothing": lambda: None,
    "number": lambda: 3,
}


@pytest.fixture(params=["helper", "torch"])
def by(request):
    if request.param == "helper":
        return ByHelper(request.getfixturevalue("helper"))
    return ByTorch(tensor_guards())


@pytest.fixture
def asked(make_definition, by):
    """A guard that remembers, the guard itself, and how often that was asked."""
    layout = Layout.of(make_definition())
    guard = make_guard(layout, Devices("cpu"), into=False)
    calls = []

    def counting(*args):
        calls.append(args)
        return guard(*args)

    return Refusals(counting, layout, by), guard, calls


@pytest.mark.parametrize("kind", ["double", "transposed", "slice", "wider", "flat", "wanting"])
def test_what_was_refused_is_not_examined_again(asked, kind):
    remembering, guard, calls = asked
    x, odd = torch.ones(2, 4), MAKERS[kind]()
    reason = guard(x, odd)
    assert reason is not None
    assert [remembering(x, each) for each in (odd, odd, MAKERS[kind]())] == [reason] * 3
    assert len(calls) == len(remembering) == 1
    assert remembering(x, torch.ones(2, 4)) is None


def test_without_grad_mode_what_wants_a_gradient_may_pass(asked):
    remembering, _, calls = asked
    x, wanting = torch.ones(2, 4), torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        assert remembering(x, wanting) == "grad"
        with torch.no_grad():
            assert remembering(x, wanting) is None
    assert len(calls) == 1 + 3


@pytest.mark.parametrize("kind", ["subclass", "sparse", "meta", "nested", "nothing", "number"])
def test_what_is_no_ordinary_tensor_is_examined_each_time(asked, kind):
    remembering, guard, calls = asked
    x, odd = torch.ones(2, 4), MAKERS[kind]()
    remembering(x, x.double())  # from now on it looks into what it knows
    for args in ((x, odd), (odd, x), (odd, odd)):
        assert remembering(*args) == remembering(*args) == guard(*args) is not None
    assert len(calls) == 1 + 6
    assert len(remembering) == 1


def test_it_does_not_grow_without_end(asked, monkeypatch):
    monkeypatch.setattr(refusals_module, "_MOST", 8)
    remembering, _, _ = asked
    for n in range(1, 20):
        assert remembering(torch.ones(n, 4), torch.ones(n, 4).double()) == "dtype"
    assert len(remembering) == 8
    for n in range(2, 20):
        assert remembering(torch.ones(1, 4), torch.ones(1, n).double()) == "dtype"
    assert len(remembering) == 8
    assert remembering(torch.ones(1, 4), torch.ones(1, 4)) is None


def test_few_are_kept_of_one_shape(asked):
    remembering, _, _ = asked
    for n in range(5, 20):
        assert remembering(torch.ones(1, 4), torch.ones(1, n)) == "shape"
    assert len(remembering) == refusals_module._MOST_ALIKE


CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(MAKERS)), st.sampled_from(sorted(MAKERS)), st.booleans()),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS)
def test_it_refuses_what_the_guard_refuses(calls, make_definition, by):
    layout = Layout.of(make_definition())
    guard = make_guard(layout, Devices("cpu"), into=False)
    remembering = Refusals(guard, layout, by)
    for left, right, graded in calls:
        x, y = MAKERS[left](), MAKERS[right]()
        with torch.set_grad_enabled(graded):
            assert remembering(x, y) == guard(x, y)


def test_calls_that_are_refused_in_turn_with_others(guards, bench):
    made = bench(lambda x, y: x + y)
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    strided = torch.rand(3, 8)[:, ::2]
    for _ in range(4):
        assert torch.equal(made(x, y), x + y)
        assert made(x, strided) == "original"
        assert made(strided, y) == "original"
        assert made(x, y.double()) == "original"
    assert made.stats.hits == 4
    assert made.stats.fallbacks == 12
    assert made.stats.misses == {"layout": 8, "dtype": 4}

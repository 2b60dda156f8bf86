"""Recognising tensors: the checker of torch, and checkers that are broken in every way."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from flashinfer_bench.apply.dispatch import recognition, trial
from flashinfer_bench.apply.dispatch import tensor_guards as tensor_guards_module
from flashinfer_bench.apply.dispatch.recognition import ByHelper, ByTorch
from flashinfer_bench.apply.dispatch.tensor_guards import (
    checker_for,
    problem_of,
    tensor_guards,
)


@pytest.fixture(autouse=True)
def _fresh():
    tensor_guards.cache_clear()
    yield
    tensor_guards.cache_clear()


@pytest.fixture(scope="module")
def real():
    """The checker of the torch that is installed."""
    guards = pytest.importorskip("torch._C._dynamo.guards")
    return guards.TensorGuards


def test_the_checker_of_this_torch_does_what_is_wanted(real):
    assert problem_of(real) is None
    assert tensor_guards() is real


class Broken:
    """A checker that does not see one thing."""

    def __init__(self, real, blind):
        self.real = real
        self.blind = blind

    def __call__(self, *tensors, **options):
        made = self.real(*tensors, **options)
        blind = self.blind

        class Checker:
            @staticmethod
            def check(*args):
                return True if any(map(blind, args)) else made.check(*args)

        return Checker()


def is_plain(value):
    return isinstance(value, torch.Tensor)


BLIND = {
    "another dtype": lambda v: is_plain(v) and v.dtype is torch.float64,
    "another dtype of one size": lambda v: is_plain(v) and v.dtype is torch.int32,
    "another size": lambda v: is_plain(v) and v.shape == (5, 8),
    "another rank": lambda v: is_plain(v) and v.dim() == 3,
    "a transposed tensor": lambda v: is_plain(v) and not v.is_sparse and v.stride() == (1, 4),
    "another device": lambda v: is_plain(v) and v.device.type == "meta",
    "requires_grad": lambda v: is_plain(v) and v.requires_grad and v.dtype is torch.float32,
    "a parameter": lambda v: type(v) is torch.nn.Parameter,
    "a subclass": lambda v: type(v).__name__ == "Own",
    "a negated view": lambda v: is_plain(v) and v.is_neg(),
    "a sparse tensor": lambda v: is_plain(v) and v.is_sparse,
}


@pytest.mark.parametrize("what", sorted(BLIND))
def test_a_checker_that_does_not_see_something_is_not_used(real, what):
    problem = problem_of(Broken(real, BLIND[what]))
    assert problem == f"takes {what} for a tensor"


@pytest.mark.parametrize("value", [None, 3, [[0.0] * 8] * 4, "text", torch.Tensor])
def test_what_is_no_tensor_does_not_get_as_far_as_the_checker(value):
    x = torch.zeros(4, 8)
    assert checker_for(Agreeing, x, x)(x, x)
    assert not checker_for(Agreeing, x, x)(x, value)
    assert not checker_for(Agreeing, x, x)(value, x)


def test_neither_do_nested_tensors_nor_those_of_transforms():
    x, asked = torch.zeros(2, 4), []

    class Deadly(Agreeing):
        def check(self, *args):
            asked.append([each.shape for each in args])  # raises if there is none
            return True

    check = checker_for(Deadly, x, x)
    nested = torch.nested.nested_tensor([x, x])
    assert not check(nested, x)
    assert not check(x, nested)
    torch.vmap(lambda each: each + float(check(each, x)))(torch.ones(3, 2, 4))
    assert asked == []
    assert check(x, x)


def test_a_checker_that_does_not_see_inference_mode_is_not_used(real):
    assert "inference" in problem_of(Broken(real, lambda v: is_plain(v) and v.is_inference()))


class Refusing:
    """Says no to everything."""

    def __init__(self, *tensors, **options):
        pass

    def check(self, *args):
        return False


class Agreeing(Refusing):
    """Says yes to everything."""

    def check(self, *args):
        return True


class Vague(Refusing):
    """Answers by something else than True and False."""

    def check(self, *args):
        return 1


class Raising(Refusing):
    """Raises when asked."""

    def check(self, *args):
        raise SystemError("changed")


@pytest.mark.parametrize("maker", [Refusing, Agreeing, Vague, Raising, lambda: None, None])
def test_other_checkers_are_not_used(maker, monkeypatch):
    assert problem_of(maker) is not None
    guards = type(sys)("torch._C._dynamo.guards")
    guards.TensorGuards = maker
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", guards)
    assert tensor_guards() is None


def test_one_that_may_not_be_tried_out_is_not_tried_out(real, monkeypatch):
    monkeypatch.setattr(trial, "problem", lambda: "ended the process that tried it out")
    monkeypatch.setattr(tensor_guards_module, "problem_of", None)
    assert tensor_guards() is None


def test_torch_without_the_checker(monkeypatch, bench, xy):
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", type(sys)("empty"))
    assert tensor_guards() is None
    made = bench(lambda x, y: x + y)
    assert torch.equal(made(*xy), xy[0] + xy[1])


# ------------------------------------------------------------------------------ recognising


@pytest.fixture(params=["torch", "helper"])
def by(request):
    """Each way to recognise tensors."""
    if request.param == "helper":
        return ByHelper(request.getfixturevalue("helper"))
    return ByTorch(request.getfixturevalue("real"))


@pytest.fixture
def recogniser(by):
    return lambda tensors, written=(): recognition.recogniser(by, tensors, written)


@pytest.fixture
def recogniser_of(by):
    return lambda values: recognition.recogniser_of(by, values)


def test_tensors_like_these(recogniser):
    x, y = torch.zeros(3, 4), torch.zeros(5, dtype=torch.int32)
    check = recogniser([x, y])
    assert check(x, y)
    assert check(torch.ones(3, 4), torch.ones(5, dtype=torch.int32))
    assert not check(y, x)
    assert not check(x, x)
    assert not check(torch.ones(4, 4), y)


def test_strides_count_only_where_elements_are_found_by_them(recogniser):
    one = torch.zeros(1, 4)
    check = recogniser([one])
    assert check(torch.zeros(8, 4)[:1])
    assert check(torch.zeros(1, 8)[:, :4])
    assert not check(torch.zeros(1, 8)[:, ::2])
    assert not recogniser([torch.zeros(2, 4)])(torch.zeros(2, 8)[:, :4])
    none = recogniser([torch.zeros(0, 4)])
    assert none(torch.zeros(4, 0).t())
    assert none(torch.zeros(0, 8)[:, ::2])


def test_the_same_object_twice(by, recogniser):
    x, y = torch.zeros(2), torch.zeros(3)
    check = recogniser([x, y, x])
    other = x.clone()
    assert check(x, y, x)
    assert check(other, y.clone(), other)
    assert check(x, y, other) is by.sees_all
    assert not check(y, x, y)
    assert not check(x, y, y)
    assert recogniser([x, x.clone()])(x, x) is by.sees_all
    assert recogniser([x, x], [1]) is None
    assert recogniser([y, x, x], [0]) is not None


def test_nothing_is_not_recognised(by, recogniser):
    assert recogniser([]) is None
    assert recognition.recogniser(None, [torch.zeros(1)]) is None
    assert not recognition.recogniser_of(None, [torch.zeros(1)])(torch.zeros(1))


def test_other_types_of_outputs(recogniser_of):
    check = recogniser_of([torch.zeros(2)])
    assert check(torch.ones(2))
    assert not check(None)
    assert not recogniser_of([1.0])(1.0)
    assert not recogniser_of([])()


def test_outputs_are_recognised_whatever_the_thread_does(by, recogniser_of):
    graded = torch.zeros(2, requires_grad=True)
    check = recogniser_of([graded])
    assert check(graded)
    assert not check(torch.zeros(2))
    if by.sees_all:
        with torch.autocast("cpu", torch.bfloat16):
            assert check(graded)


def test_no_tensor_is_kept_alive(recogniser):
    x = torch.zeros(2)
    check = recogniser([x])
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert check(torch.zeros(2))


def test_the_quickest_way_that_works_is_taken(real, helper, monkeypatch):
    monkeypatch.setattr(recognition.native, "maker", lambda: helper)
    assert type(recognition.recognition()) is ByHelper
    monkeypatch.setattr(recognition.native, "maker", lambda: None)
    assert type(recognition.recognition()) is ByTorch
    monkeypatch.setattr(recognition, "tensor_guards", lambda: None)
    assert recognition.recognition() is None


def test_strides_and_sizes_are_always_given():
    """Without them the checker of torch reads what is not there."""
    seen = []

    class Spy(Agreeing):
        def __init__(self, *tensors, **options):
            seen.append(options)

    recognition.recogniser(ByTorch(Spy), [torch.zeros(3, 4), torch.zeros(())])
    assert seen == [{"dynamic_dims_sizes": [[3, 4], []], "dynamic_dims_strides": [[4, 1], []]}]


def test_what_cannot_be_described_is_not_recognised():
    class Choosy(Agreeing):
        def __init__(self, *tensors, **options):
            raise RuntimeError("not these")

    assert recognition.recogniser(ByTorch(Choosy), [torch.zeros(1)]) is None
    assert not recognition.recogniser_of(ByTorch(Choosy), [torch.zeros(1)])(torch.zeros(1))

"""Recognising tensors: the checker of torch, and checkers that are broken in every way."""

from __future__ import annotations

import sys

import pytest
import torch

from flashinfer_bench.apply.dispatch import recognition
from flashinfer_bench.apply.dispatch.recognition import (
    Recognition,
    by_torch,
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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_and_those_of_transforms_do_not_reach_the_checker():
    x, asked = torch.zeros(2, 4), []

    class Deadly(Agreeing):
        def check(self, *args):
            asked.append([each.shape for each in args])  # raises if there is none
            return True

    check = by_torch(Deadly).make([x, x.clone()])
    nested = torch.nested.nested_tensor([x, x])
    assert not check(nested, x)
    assert not check(x, nested)
    torch.vmap(lambda each: each + float(check(each, x)))(torch.ones(3, 2, 4))
    assert asked == []
    assert check(x, x)


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


# ------------------------------------------------------------------------------ recognising


@pytest.fixture(params=["torch", "helper"])
def by(request):
    """Each way to recognise tensors."""
    if request.param == "helper":
        return Recognition(request.getfixturevalue("helper"), sees_all=True)
    return by_torch(request.getfixturevalue("real"))


@pytest.fixture
def recogniser(by):
    return lambda tensors, written=(): recognition.recogniser(by, tensors, written)


@pytest.fixture
def recogniser_of(by):
    return lambda values: recognition.recogniser_of(by, values)


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


def test_the_quickest_way_that_works_is_taken(real, helper, monkeypatch):
    monkeypatch.setattr(recognition.native, "maker", lambda: helper)
    assert recognition.recognition().sees_all
    monkeypatch.setattr(recognition.native, "maker", lambda: None)
    assert not recognition.recognition().sees_all
    monkeypatch.setattr(recognition, "tensor_guards", lambda: None)
    assert recognition.recognition() is None


# ------------------------------------------------------- releases of torch that are not known


@pytest.fixture
def unknown(monkeypatch, tmp_path):
    """A release that is not known, and an empty cache."""
    monkeypatch.setattr(recognition, "KNOWN_RELEASES", ("0.4",))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


def test_another_process_is_asked_once(unknown, real, monkeypatch):
    monkeypatch.setenv("FIB_ENABLE_APPLY", "1")  # it enables nothing
    assert tensor_guards() is real
    tensor_guards.cache_clear()
    monkeypatch.setattr(recognition, "_START", "raise SystemExit(9)")
    assert tensor_guards() is real


def test_a_checker_that_ends_its_process_harms_nobody_and_is_not_asked_again(
    unknown, monkeypatch, tmp_path
):
    start = recognition._START
    monkeypatch.setattr(recognition, "_START", "import os; os.abort()")
    assert tensor_guards() is None
    monkeypatch.setattr(recognition, "_START", start)
    assert "ended the process" in recognition.problem_elsewhere()
    (kept,) = (tmp_path / "cache" / "apply").iterdir()
    kept.write_text("{")  # damaged: it is asked for again
    assert recognition.problem_elsewhere() is None


@pytest.mark.parametrize("python", ["", "/no/such/python"])
def test_without_an_interpreter_there_is_no_trial(unknown, monkeypatch, tmp_path, python):
    monkeypatch.setattr(sys, "executable", python)
    assert "could not be tried out" in recognition.problem_elsewhere()
    assert not (tmp_path / "cache").exists()

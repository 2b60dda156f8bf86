"""Recognising tensors, by the helper that is compiled on the machine and by torch's checker."""

from __future__ import annotations

import sys

import pytest
import torch

from flashinfer_bench.apply.dispatch import recognition
from flashinfer_bench.apply.dispatch.recognition import by_torch, tensor_guards

pytestmark = pytest.mark.slow  # compiling takes long: once for all tests


@pytest.fixture(autouse=True)
def _fresh():
    tensor_guards.cache_clear()
    yield
    tensor_guards.cache_clear()


@pytest.fixture(params=["torch", "helper"])
def by(request):
    """Each way to recognise tensors."""
    if request.param == "helper":
        return request.getfixturevalue("helper")
    if tensor_guards() is None:
        pytest.skip("this torch has none that is known")
    return by_torch(tensor_guards())


@pytest.fixture
def recogniser(by):
    return lambda tensors, written=(): recognition.recogniser(by, tensors, written)


def test_the_thread_counts_too(by, recogniser):
    x, wanting = torch.zeros(8), torch.zeros(8, requires_grad=True)
    check = recogniser([x])
    with torch.inference_mode():
        assert check(torch.zeros(8)) is False
    with torch.no_grad():
        ungraded = recogniser([wanting])
        assert ungraded(wanting) is True
    assert ungraded(wanting) is False


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_and_those_of_transforms_do_not_reach_the_checker_of_torch():
    x, asked = torch.zeros(2, 4), []

    class Deadly:
        def __init__(self, *tensors, **options):
            pass

        def check(self, *args):
            asked.append([each.shape for each in args])  # raises if there is none
            return True

    check = by_torch(Deadly)([x, x.clone()])
    nested = torch.nested.nested_tensor([x, x])
    assert not check(nested, x)
    assert not check(x, nested)
    torch.vmap(lambda each: each + float(check(each, x)))(torch.ones(3, 2, 4))
    assert asked == []
    assert check(x, x)


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


def test_the_quickest_way_that_works_is_taken(helper, monkeypatch):
    monkeypatch.setattr(recognition, "by_helper", lambda: helper)
    assert recognition.recognition() is helper
    monkeypatch.setattr(recognition, "by_helper", lambda: None)
    monkeypatch.setattr(recognition, "KNOWN_RELEASES", ("0.4",))
    assert recognition.recognition() is None


def test_it_keeps_and_leaks_nothing(helper):
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    before = sys.getrefcount(x), sys.getrefcount(torch.Tensor)
    checks = [helper([x, y], [1]) for _ in range(100)]
    for check in checks:
        assert check(x, y)
    del checks, check
    assert sys.getrefcount(x) == before[0]
    assert abs(sys.getrefcount(torch.Tensor) - before[1]) < 20

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

"""The hook of the first release, which is told of each call that apply sees."""

import pytest

from flashinfer_bench.apply import apply
from flashinfer_bench.apply.hook import get_apply_hook, set_apply_hook


@pytest.fixture(autouse=True)
def no_hook():
    yield
    set_apply_hook(None)


def fallback(*args, **kwargs):
    return "fallback"


def test_is_told_of_calls():
    seen = []
    set_apply_hook(lambda name, arguments: seen.append((name, dict(arguments))))
    assert apply("d", runtime_kwargs={"x": 1}, fallback=fallback) == "fallback"
    assert apply("e", args=(1, 2), fallback=fallback) == "fallback"
    assert seen == [("d", {"x": 1}), ("e", {"0": 1, "1": 2})]


def test_knows_the_names_of_a_decorated_function():
    seen = []

    @apply("d")
    def function(x, y=2, *rest, z=3):
        return x

    set_apply_hook(lambda name, arguments: seen.append(dict(arguments)))
    function(1)
    function(1, 5, 6, z=7)
    assert seen == [{"x": 1, "y": 2, "z": 3}, {"x": 1, "y": 5, "2": 6, "z": 7}]


def test_that_fails_breaks_nothing(caplog):
    set_apply_hook(lambda *_: 1 / 0)
    assert apply("d", args=(1,), fallback=fallback) == "fallback"
    assert "ZeroDivisionError" in caplog.text
    set_apply_hook(None)
    get_apply_hook()("d", {})

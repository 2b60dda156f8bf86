"""Which parameter of a function is which input or output of its definition."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.binding import bind, match, same_value


def definition(inputs, outputs):
    return SimpleNamespace(
        name="d", inputs=dict.fromkeys(inputs.split()), outputs=dict.fromkeys(outputs.split())
    )


def matched(function, inputs, outputs=""):
    return match(inspect.signature(function), inputs.split(), outputs.split())


class Taker:
    """Takes all calls and keeps what it got."""

    def __init__(self, answer="taken"):
        self.answer = answer
        self.calls = []

    def __call__(self, args, kwargs, fallback):
        assert kwargs is None
        self.calls.append(args)
        return self.answer


def falls_back(args, kwargs, fallback):
    """Take no call; the fallback gets other objects than the caller gave, as shadow calls do."""
    return fallback(*[f"copy of {value}" for value in args])


def bound(function, inputs, outputs="", call=None):
    """Return `function` as if decorated, with `call` taking its calls."""
    signature = inspect.signature(function)
    taken = bind(call or Taker(), definition(inputs, outputs), signature)

    def decorated(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return taken(given.args, given.kwargs or None, function)

    return decorated


@pytest.mark.parametrize(
    ("function", "inputs", "outputs", "expected"),
    [
        (lambda x, y: 0, "x y", "", ("x y", "", "", "")),
        (lambda y, x: 0, "x y", "", ("x y", "", "", "")),
        (lambda x, out: 0, "x", "out", ("x", "out", "", "")),
        (lambda x, out=None: 0, "x", "out", ("x", "out", "out", "")),
        # What the definition does not know, or knows only some of.
        (lambda x, eps=1e-6, *, out=None: 0, "x", "y", ("x", "", "", "eps out")),
        (lambda x, out=None: 0, "x", "out lse", ("x", "", "", "out")),
        # Other names go by position, if they must be given.
        (lambda a, b: 0, "x y", "", ("a b", "", "", "")),
        (lambda a, y: 0, "x y", "", ("a y", "", "", "")),
        (lambda a, b, c: 0, "x y", "z", ("a b", "c", "", "")),
        (lambda a, b, bias=None: 0, "x y", "z", ("a b", "", "", "bias")),
        (lambda self, a, b: 0, "x y", "", ("a b", "", "", "")),
        (lambda cls, y, x: 0, "x y", "", ("x y", "", "", "")),
    ],
)
def test_what_is_what(function, inputs, outputs, expected):
    found = matched(function, inputs, outputs)
    told = found.inputs, found.outputs, found.may_lack, found.extras
    assert tuple(" ".join(each) for each in told) == expected
    assert found.rest == ()


@pytest.mark.parametrize(
    ("function", "inputs", "told"),
    [
        (lambda a, x: 0, "x y", r"'x' is at position 1, but .* at 0"),
        (lambda x: 0, "x y", "no parameter is input 'y'"),
        (lambda x, mode: 0, "x", "'mode' is neither"),
    ],
)
def test_what_cannot_be(function, inputs, told):
    with pytest.raises(ConfigError, match=told):
        matched(function, inputs)


class TestCalls:
    def test_arguments_are_put_in_order(self):
        taker = Taker()
        assert bound(lambda y, x, *, scale=3: 0, "x scale y", call=taker)(1, 2) == "taken"
        assert taker.calls == [(2, 3, 1)]

    def test_of_a_method(self):
        taker = Taker()
        bound(lambda self, x: 0, "x", call=taker)("object", 1)
        assert taker.calls == [(1,)]

    def test_the_original_gets_its_own_arguments_back(self):
        def function(self, y, x, eps=1e-6, *rest, scale, **more):
            return self, y, x, eps, rest, scale, more

        called = bound(function, "x scale y", call=falls_back)
        assert called("object", 1, 2, scale=3) == (
            *("object", "copy of 1", "copy of 2", 1e-6, (), "copy of 3", {}),
        )

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((1, 2, 0.5), {}),
            ((1, 2), {"eps": 0.5}),
            ((1, 2, 1e-6, 4), {}),
            ((1, 2), {"flag": True}),
            ((1, 2), {"other": 4}),
        ],
    )
    def test_that_the_definition_does_not_describe_go_to_the_original(self, args, kwargs):
        def function(y, x, eps=1e-6, *rest, flag=False, **more):
            return y, x, eps, rest, flag, more

        taker = Taker()
        assert bound(function, "x y", call=taker)(*args, **kwargs) == function(*args, **kwargs)
        assert taker.calls == []

    def test_a_default_may_be_given_by_its_value(self):
        taker = Taker()
        called = bound(lambda x, eps=1e-6, flag=False: 0, "x", call=taker)
        assert called(1, 0.000001, flag=False) == "taken"
        called(1, 1e-6, flag=0)
        assert taker.calls == [(1,)]


class TestOutputs:
    def test_that_are_always_passed(self):
        taker = Taker(answer=None)
        called = bound(lambda out, x: 0, "x", "out", call=taker)
        assert called("buffer", 1) is None
        assert taker.calls == [(1, "buffer")]

    def test_that_may_be_left_out_are_returned_if_they_are(self):
        taker = Taker()
        assert bound(lambda x, out=None: 0, "x", "out", call=taker)(1) == "taken"
        assert taker.calls == [(1,)]

    def test_that_are_given_in_part_go_to_the_original(self):
        def function(x, out=None, lse=None):
            return "original", x, out, lse

        taker = Taker(answer=None)
        called = bound(function, "x", "out lse", call=taker)
        assert called(1, out="o") == ("original", 1, "o", None)
        assert called(1, lse="l") == ("original", 1, None, "l")
        assert taker.calls == []

    def test_what_the_original_returns_is_returned(self):
        def function(x, out=None):
            return "original", x, out

        called = bound(function, "x", "out", call=falls_back)
        assert called(1) == ("original", "copy of 1", None)
        assert called(1, "o") == ("original", "copy of 1", "copy of o")


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        (1, 1, True),
        (True, 1, False),
        ("a", "a", True),
        (b"a", b"a", True),
        ([], [], False),
    ],
)
def test_when_an_argument_is_the_default(value, default, same):
    assert same_value(value, default) is same

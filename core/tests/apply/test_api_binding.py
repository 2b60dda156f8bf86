"""Which parameter of a function is which input or output of its definition."""

from __future__ import annotations

import inspect
import traceback
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.binding import bind, match, same_value


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


class TestNames:
    def test_that_are_the_same(self):
        found = matched(lambda x, y: 0, "x y")
        assert found.inputs == ("x", "y")
        assert found.outputs == found.extras == found.rest == ()

    def test_in_another_order(self):
        assert matched(lambda y, x: 0, "x y").inputs == ("x", "y")

    def test_of_outputs(self):
        found = matched(lambda x, out: 0, "x", "out")
        assert (found.inputs, found.outputs, found.may_lack) == (("x",), ("out",), ())

    def test_of_outputs_that_may_be_left_out(self):
        found = matched(lambda x, out=None: 0, "x", "out")
        assert (found.outputs, found.may_lack) == (("out",), ("out",))

    def test_of_outputs_before_inputs(self):
        found = matched(lambda out, x: 0, "x", "out")
        assert (found.inputs, found.outputs) == (("x",), ("out",))

    def test_by_keyword(self):
        assert matched(lambda x, *, scale: 0, "x scale").inputs == ("x", "scale")

    def test_that_the_definition_does_not_know(self):
        found = matched(lambda x, eps=1e-6, *, out=None: 0, "x", "y")
        assert (found.inputs, found.outputs, found.extras) == (("x",), (), ("eps", "out"))

    def test_of_some_outputs_only_are_not_known(self):
        found = matched(lambda x, out=None: 0, "x", "out lse")
        assert (found.outputs, found.extras) == ((), ("out",))

    def test_with_a_rest(self):
        assert matched(lambda x, *rest, **more: 0, "x").rest == ("rest", "more")


class TestPositions:
    def test_take_other_names(self):
        assert matched(lambda a, b: 0, "x y").inputs == ("a", "b")

    def test_take_other_names_together_with_same_names(self):
        assert matched(lambda a, y: 0, "x y").inputs == ("a", "y")

    def test_take_other_names_together_with_names_by_keyword(self):
        assert matched(lambda a, b, *, scale: 0, "x y scale").inputs == ("a", "b", "scale")

    def test_of_outputs(self):
        found = matched(lambda a, b, c: 0, "x y", "z")
        assert (found.inputs, found.outputs) == (("a", "b"), ("c",))

    def test_of_outputs_that_may_be_anything_else(self):
        found = matched(lambda a, b, bias=None: 0, "x y", "z")
        assert (found.outputs, found.extras) == ((), ("bias",))

    def test_that_contradict_names(self):
        with pytest.raises(ConfigError, match=r"'x' is at position 1, but .* at 0"):
            matched(lambda a, x: 0, "x y")

    def test_of_an_object_do_not_count(self):
        assert matched(lambda self, a, b: 0, "x y").inputs == ("a", "b")
        assert matched(lambda cls, y, x: 0, "x y").inputs == ("x", "y")

    def test_of_an_input_that_is_called_self(self):
        assert matched(lambda self, other: 0, "self other").inputs == ("self", "other")


class TestNoMatch:
    def test_for_lack_of_an_input(self):
        with pytest.raises(ConfigError, match="no parameter is input 'y'"):
            matched(lambda x: 0, "x y")

    def test_because_of_a_parameter_without_a_meaning(self):
        with pytest.raises(ConfigError, match="'mode' is neither"):
            matched(lambda x, mode: 0, "x")

    def test_because_of_a_parameter_beyond_the_outputs(self):
        with pytest.raises(ConfigError, match="'d' is neither"):
            matched(lambda a, b, c, d: 0, "x y", "z")


class TestCalls:
    def test_a_function_like_its_definition_costs_nothing(self):
        taker = Taker()
        for function in (lambda x, y: 0, lambda a, b: 0, lambda x, y, z: 0):
            sig = inspect.signature(function)
            assert bind(taker, definition("x y", "z"), sig) is taker

    def test_one_without_a_signature_neither(self):
        taker = Taker()
        assert bind(taker, definition("x", "y"), None) is taker

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

    def test_the_call_is_opaque_to_torch_compile(self):
        signature = inspect.signature(lambda y, x: 0)
        assert bind(Taker(), definition("x y", "z"), signature)._torchdynamo_disable

    def test_what_is_raised_shows_its_way(self):
        def failing(args, kwargs, fallback):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            bound(lambda y, x: 0, "x y", call=failing)(1, 2)
        assert "return _fib_call((x, y,), None, _fib_again)" in "".join(
            traceback.format_exception(caught.value)
        )


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

    def test_that_may_be_left_out_are_returned_if_they_are_not(self):
        taker = Taker(answer=None)
        assert bound(lambda x, out=None: 0, "x", "out", call=taker)(1, "buffer") == "buffer"
        assert taker.calls == [(1, "buffer")]

    def test_several_are_returned_in_the_order_of_the_definition(self):
        taker = Taker(answer=None)
        called = bound(lambda x, lse=None, out=None: 0, "x", "out lse", call=taker)
        assert called(1, lse="l", out="o") == ("o", "l")
        assert taker.calls == [(1, "o", "l")]

    def test_that_are_given_in_part_go_to_the_original(self):
        def function(x, out=None, lse=None):
            return "original", x, out, lse

        taker = Taker(answer=None)
        called = bound(function, "x", "out lse", call=taker)
        assert called(1, out="o") == ("original", 1, "o", None)
        assert called(1, lse="l") == ("original", 1, None, "l")
        assert taker.calls == []

    def test_that_may_be_left_out_in_part(self):
        def function(x, out, lse=None):
            return "original", x, out, lse

        taker = Taker(answer=None)
        called = bound(function, "x", "out lse", call=taker)
        assert called(1, "o") == ("original", 1, "o", None)
        assert called(1, "o", "l") == ("o", "l")

    def test_what_the_original_returns_is_returned(self):
        def function(x, out=None):
            return "original", x, out

        called = bound(function, "x", "out", call=falls_back)
        assert called(1) == ("original", "copy of 1", None)
        assert called(1, "o") == ("original", "copy of 1", "copy of o")


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        (None, None, True),
        (1, 1, True),
        (1.0, 1, False),
        (True, 1, False),
        (0.5, 0.5, True),
        ("a", "a", True),
        (b"a", b"a", True),
        (float("nan"), float("nan"), False),
        ([], [], False),
        (None, 0, False),
    ],
)
def test_when_an_argument_is_the_default(value, default, same):
    assert same_value(value, default) is same


def test_an_argument_is_never_compared_with_a_tensor_s_equality():
    class Tensor:
        def __eq__(self, other):
            raise AssertionError

        __hash__ = None

    assert not same_value(Tensor(), 1)
    assert not same_value(1, Tensor())
    one = Tensor()
    assert same_value(one, one)


NAMES = ["x", "y", "z", "out", "lse", "a", "b", "c", "eps"]


@st.composite
def parameters(draw):
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    by_keyword = draw(st.integers(0, len(names)))
    split = len(names) - by_keyword
    first_default = draw(st.integers(0, split))
    parts = [name + ("=None" if i >= first_default else "") for i, name in enumerate(names[:split])]
    if by_keyword:
        parts.append("*")
        parts += [name + ("=None" if draw(st.booleans()) else "") for name in names[split:]]
    return ", ".join(parts)


def described(signature, args, kwargs, inputs, outputs):
    """Say independently which inputs and outputs a call gives, by names alone."""
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    values = given.arguments
    known = {*inputs, *outputs}
    if not all(name in values for name in inputs):
        return None
    passed = [name for name in outputs if values.get(name) is not None]
    extra = [name for name, value in values.items() if name not in known and value is not None]
    if extra or (passed and len(passed) < len(outputs)):
        return None
    return tuple(values[name] for name in [*inputs, *passed])


@given(parameters(), st.data())
def test_where_all_inputs_are_named_names_alone_decide(text, data):
    scope = {}
    exec(f"def function({text}):\n    return 'original', dict(locals())\n", scope)
    function, inputs, outputs = scope["function"], ["x", "y"], ["out", "lse"]
    signature = inspect.signature(function)
    try:
        found = match(signature, inputs, outputs)
    except ConfigError:
        return
    if not {*inputs} <= {*signature.parameters}:
        assert len(set(found.inputs)) == len(inputs)
        return
    needed = [p.name for p in signature.parameters.values() if p.default is p.empty]
    optional = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
    names = [*needed, *(n for n in optional if n in signature.parameters and n not in needed)]
    kwargs = {name: f"<{name}>" for name in names}
    expected = described(signature, (), kwargs, inputs, outputs)
    taker = Taker(answer=None)
    bound(function, "x y", "out lse", call=taker)(**kwargs)
    assert taker.calls == ([] if expected is None else [expected])

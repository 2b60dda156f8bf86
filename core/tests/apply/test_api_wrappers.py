"""What a decorated function becomes."""

from __future__ import annotations

import functools
import gc
import inspect
import typing
import weakref

import pytest

from fib_tests.routed_library import Runtime, missing
from flashinfer_bench.apply import apply
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import router

pytestmark = pytest.mark.usefixtures("enable")


@apply("d")
def scale(x, factor=2, *, offset: int = 0):
    """Scale x."""
    return x * factor + offset


class TestDisabled:
    def test_it_looks_as_it_did(self):
        assert scale.__name__ == "scale"
        assert scale.__qualname__ == "scale"
        assert scale.__doc__ == "Scale x."
        assert scale.__module__ == __name__
        assert str(inspect.signature(scale)) == "(x, factor=2, *, offset: 'int' = 0)"
        assert typing.get_type_hints(scale) == {"offset": int}
        assert scale.__wrapped__(3) == 6

    def test_wrong_arguments_are_refused_as_before(self):
        with pytest.raises(TypeError, match="missing"):
            scale()
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            scale(1, nonsense=2)

    def test_a_default_is_the_very_object(self, enable):
        default = object()

        @apply("d")
        def function(x, y=default, *, z=default):
            return y, z

        assert function(1) == (default, default)
        enable("d")
        assert function(1)[2:4] == ((1, default), {"z": default})


class TestEnabled:
    def test_arguments_come_in_the_order_of_the_parameters(self, enable):
        enable("d")
        assert scale(factor=4, x=3) == ("taken", "d", (3, 4), {"offset": 0}, scale.__wrapped__)

    def test_the_original_may_itself_make_such_calls(self):
        @apply("d")
        def function(x):
            return apply("d", args=(x,), fallback=lambda x: ("innermost", x))

        assert function(1) == ("innermost", 1)

        router.push(Runtime(missing, "d"))
        assert function(1) == ("innermost", 1)


class TestKindsOfFunctions:
    def test_a_method(self, enable):
        class Layer:
            @apply("d")
            def forward(self, x, y=1):
                return self, x, y

        layer = Layer()
        assert layer.forward(2) == (layer, 2, 1)
        enable("d")
        assert layer.forward(2)[2] == (layer, 2, 1)
        assert Layer.forward(layer, 2)[2] == (layer, 2, 1)

    @pytest.mark.parametrize("kind", [staticmethod, classmethod])
    def test_a_static_method_and_a_class_method(self, enable, kind):
        class Layer:
            @apply("d")
            @kind
            def forward(*args):
                return args

        first = (Layer,) if kind is classmethod else ()
        assert Layer.forward(2) == (*first, 2)
        enable("d")
        assert Layer().forward(2)[2] == (*first, 2)

    def test_a_partial_and_an_object_that_can_be_called(self):
        assert apply("d")(functools.partial(lambda x, y: (x, y), 1))(2) == (1, 2)

        class Callable:
            def __call__(self, x):
                return ("called", x)

        assert apply("d")(Callable())(1) == ("called", 1)

    def test_one_whose_parameters_are_called_like_our_own_names(self, enable):
        @apply("d")
        def function(wrapper, make, _fib_slot=3):
            return wrapper, make, _fib_slot

        assert function(1, make=2) == (1, 2, 3)
        enable("d")
        assert function(1, make=2)[2:4] == ((1,), {"make": 2})

    @pytest.mark.parametrize("function", [5, None, "name"])
    def test_what_cannot_be_called_is_refused(self, function):
        with pytest.raises(ConfigError, match="decorates functions"):
            apply("d")(function)

    def test_what_returns_no_result_is_refused(self):
        async def coroutine(x):
            return x

        with pytest.raises(ConfigError, match="coroutine or a generator"):
            apply("d")(coroutine)


class TestAResolver:
    def decorated(self, resolver):
        @apply(resolver)
        def function(x, y=2, *, z=3):
            return x, y, z

        return function

    def test_is_not_asked_while_nothing_is_enabled(self):
        def resolver(*_):
            raise AssertionError

        assert self.decorated(resolver)(1) == (1, 2, 3)

    @pytest.mark.parametrize(
        "resolver",
        [
            lambda x: x,
            lambda x, y: x,
            lambda x, y, z: x,
            lambda y, x: x,
            lambda z, x: x,
            lambda x, /: x,
            lambda *, x: x,
            lambda a: a,
            lambda a, b: a,
            lambda a, b=None: a,
            lambda *args, z: args[0],
            lambda *args, **kwargs: args[0],
            lambda x, **kwargs: x,
        ],
    )
    def test_gets_what_it_has_parameters_for(self, enable, resolver):
        function = self.decorated(resolver)
        enable("d")
        assert function("d") == ("taken", "d", ("d", 2), {"z": 3}, function.__wrapped__)
        assert function(x="d")[:2] == ("taken", "d")
        assert function("unknown") == ("unknown", 2, 3)

    def test_gets_the_very_arguments_of_a_function_that_names_nothing(self, enable):
        seen = []

        def resolver(*args, **kwargs):
            seen.append((args, kwargs))
            return "d"

        function = apply(resolver)(lambda *args, **kwargs: None)
        enable("d")
        assert function(1, y=2)[:4] == ("taken", "d", (1,), {"y": 2})
        assert seen == [((1,), {"y": 2})]

    @pytest.mark.parametrize("answer", [None, 3, [], "unknown"])
    def test_that_gives_no_known_name_leaves_the_call_alone(self, enable, answer):
        function = self.decorated(lambda x: answer)
        enable("d")
        assert function(1) == (1, 2, 3)

    def test_that_fails_is_logged_once(self, enable, caplog):
        @apply(lambda x: 1 / 0)
        def of_this_test(x):
            return x

        enable("d")
        assert [of_this_test(1) for _ in range(3)] == [1] * 3
        assert len(caplog.records) == 1
        assert "ZeroDivisionError" in caplog.text
        assert "of_this_test" in caplog.text


class TestMemory:
    def test_a_decorated_function_goes_away(self, enable):
        enable("d")

        def make():
            @apply("d")
            def function(x):
                return x

            function(1)
            return weakref.ref(function), weakref.ref(function.__wrapped__)

        wrapper, original = make()
        gc.collect()
        assert wrapper() is None
        assert original() is None

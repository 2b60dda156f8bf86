"""What a decorated function becomes."""

from __future__ import annotations

import functools
import gc
import inspect
import typing
import weakref

import pytest

import flashinfer_bench.apply
from flashinfer_bench.apply import apply, get_runtime, set_runtime
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
        assert function(1)[1:3] == ((1, default), {"z": default})


def test_arguments_come_in_the_order_of_the_parameters(enable):
    enable("d")
    assert scale(factor=4, x=3) == ("taken", (3, 4), {"offset": 0}, scale.__wrapped__)


class TestKindsOfFunctions:
    def test_a_method(self, enable):
        class Layer:
            @apply("d")
            def forward(self, x, y=1):
                return self, x, y

        layer = Layer()
        assert layer.forward(2) == (layer, 2, 1)
        enable("d")
        assert layer.forward(2)[1] == (layer, 2, 1)
        assert Layer.forward(layer, 2)[1] == (layer, 2, 1)

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
        assert Layer().forward(2)[1] == (*first, 2)

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
        assert function(1, make=2)[1:3] == ((1,), {"make": 2})

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
        assert function("d") == ("taken", ("d", 2), {"z": 3}, function.__wrapped__)
        assert function(x="d")[0] == "taken"
        assert function("unknown") == ("unknown", 2, 3)

    @pytest.mark.parametrize("answer", [None, 3, [], "unknown"])
    def test_that_gives_no_known_name_leaves_the_call_alone(self, enable, answer):
        function = self.decorated(lambda x: answer)
        enable("d")
        assert function(1) == (1, 2, 3)

    def test_that_fails_is_logged_once(self, enable, caplog):
        def fails_here(x):
            return 1 / 0

        enable("d")
        decorated = apply(fails_here)(fallback)
        single = functools.partial(apply, fails_here, fallback=fallback)
        for call, given, told in (
            (decorated, 1, "fallback failed"),
            (single, (1,), "fails_here failed"),
        ):
            caplog.clear()
            assert [call(given) for _ in range(3)] == [("fallback", (1,), {})] * 3
            (record,) = caplog.records
            assert told in record.getMessage()
            assert "ZeroDivisionError" in caplog.text


def test_a_decorated_function_goes_away(enable):
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


# ------------------------------------------------------------------------------------ single calls


@pytest.fixture
def enabled(enable):
    return enable("d")


def fallback(*args, **kwargs):
    return ("fallback", args, kwargs)


def test_arguments_in_each_form(enabled):
    assert apply("d", (1, 2), None, fallback) == ("taken", (1, 2), None, fallback)
    answer = apply("d", args=(1,), kwargs={"y": 2}, fallback=fallback)
    assert answer == ("taken", (1,), {"y": 2}, fallback)
    assert apply("d", kwargs={"x": 1})[1:] == ((), {"x": 1}, None)
    assert apply("d", {"x": 1}, fallback)[1:] == ((), {"x": 1}, fallback)  # as by the old name
    assert apply("d", ())[1:] == ((), None, None)
    assert apply("d", fallback=fallback)[1:] == ((), None, fallback)


def test_while_nothing_is_enabled_the_fallback_gets_the_very_arguments():
    x, y = object(), object()
    answer = apply("d", args=(x,), kwargs={"y": y}, fallback=fallback)
    assert answer[1][0] is x
    assert answer[2]["y"] is y
    with pytest.raises(RuntimeError, match=r"'d'.*not enabled"):
        apply("d", args=(1,))


class TestAResolverOfASingleCall:
    def test_gets_the_arguments(self, enabled):
        seen = []

        def resolver(*args, **kwargs):
            seen.append((args, kwargs))
            return "d"

        assert apply(resolver, args=(1,), kwargs={"y": 2})[0] == "taken"
        assert seen == [((1,), {"y": 2})]

    def test_of_the_old_form_gets_them_by_name(self, enabled):
        answer = apply(lambda x, y: f"{x}", runtime_kwargs={"x": "d", "y": 2}, fallback=fallback)
        assert answer[0] == "taken"

    @pytest.mark.parametrize("answer", [None, 5, ("d",)])
    def test_that_gives_no_name(self, enabled, answer):
        assert apply(lambda x: answer, args=(1,), fallback=fallback)[0] == "fallback"
        with pytest.raises(RuntimeError, match="not a definition name"):
            apply(lambda x: answer, args=(1,))

    def test_or_it_is_refused(self, enabled):
        with pytest.raises(ConfigError, match="neither"):
            apply(5, args=(1,))
        with pytest.raises(ConfigError, match="neither"):
            apply(5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("xy", None, fallback), "is a string"),
        (((1,), [2], fallback), "kwargs is a list"),
        (([1], None, 5), "fallback is a int"),
    ],
)
def test_arguments_that_are_refused(given, told):
    with pytest.raises(TypeError, match=told):
        apply("d", *given)


def test_the_module_is_the_function_and_a_module_none_the_less():
    assert flashinfer_bench.apply("d", (1,), None, fallback) == ("fallback", (1,), {})
    assert flashinfer_bench.apply.enable_apply is not None
    assert "enable_apply" in dir(flashinfer_bench.apply)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = flashinfer_bench.apply.nonsense
    names = list(inspect.signature(flashinfer_bench.apply).parameters)
    assert names == ["name_or_resolver", "args", "kwargs", "fallback", "old"]


class TestAnyObjectThatDispatches:
    @pytest.fixture(params=["by position", "by name"])
    def runtime(self, request, enabled):
        class ByPosition:
            def dispatch(self, name, args, kwargs, fallback):
                return "mine", name, dict(zip("xy", args, strict=False)) | kwargs, fallback

        class ByName:
            def dispatch(self, def_name, runtime_kwargs, fallback):
                return "mine", def_name, runtime_kwargs, fallback

        made = ByName() if request.param == "by name" else ByPosition()
        set_runtime(made)
        yield made
        set_runtime(None)
        assert get_runtime() is None

    def test_gets_all_calls(self, runtime):
        @apply("anything")
        def function(x, *, y=2):
            return x

        original = function.__wrapped__
        assert function(1) == ("mine", "anything", {"x": 1, "y": 2}, original)
        found = apply("other", runtime_kwargs={"x": 1}, fallback=fallback)
        assert found == ("mine", "other", {"x": 1}, fallback)
        if type(runtime).__name__ == "ByPosition":
            assert apply("d", (1,), None, fallback) == ("mine", "d", {"x": 1}, fallback)
        else:
            with pytest.raises(TypeError, match="by name alone"):
                apply("d", (1,), None, fallback)
        assert get_runtime() is runtime


class TestOldNamesOfTheRuntime:
    def test_setting_one_replaces_all(self, enabled):
        other = type(enabled)(None, "e")
        set_runtime(other)
        assert router.active == (other,)
        set_runtime(None)
        assert router.active == ()

    def test_something_else_is_refused_and_changes_nothing(self, enabled):
        with pytest.raises(ConfigError, match="has no dispatch"):
            set_runtime(object())
        assert get_runtime() is enabled

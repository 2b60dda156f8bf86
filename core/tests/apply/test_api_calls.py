"""Single calls: ``apply(name, args, kwargs, fallback)`` in all its forms."""

from __future__ import annotations

import pytest

import flashinfer_bench.apply
from flashinfer_bench.apply import apply, get_runtime, set_runtime
from flashinfer_bench.apply.arguments import arguments
from flashinfer_bench.apply.hook import get_apply_hook, set_apply_hook
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.slots import board


class Runtime:
    """Takes calls of "d", and answers with what it got."""

    def __init__(self, *names):
        self.known = names or ("d",)

    def names(self):
        return self.known

    def route(self, name, slot):
        return lambda args, kwargs, fallback: ("taken", name, args, kwargs, fallback)

    def stop(self):
        board.remove(self)


@pytest.fixture(autouse=True)
def nothing_enabled():
    board.clear()
    board.asked()
    yield
    board.clear()


@pytest.fixture
def enabled():
    runtime = Runtime()
    board.push(runtime)
    return runtime


def fallback(*args, **kwargs):
    return ("fallback", args, kwargs)


class TestTaken:
    def test_by_position(self, enabled):
        assert apply("d", (1, 2), None, fallback) == ("taken", "d", (1, 2), None, fallback)

    @pytest.mark.parametrize("named", [{"kwargs": {}}, {"runtime_kwargs": {}}])
    def test_no_names_are_no_names(self, enabled, named):
        assert apply("d", (1, 2), fallback=fallback, **named)[3] is None
        assert apply("other", (1, 2), fallback=fallback, **named) == ("fallback", (1, 2), {})

    def test_by_position_and_name(self, enabled):
        answer = apply("d", args=(1,), kwargs={"y": 2}, fallback=fallback)
        assert answer == ("taken", "d", (1,), {"y": 2}, fallback)

    def test_by_name(self, enabled):
        assert apply("d", kwargs={"x": 1})[2:] == ((), {"x": 1}, None)

    def test_by_the_old_name(self, enabled):
        answer = apply("d", runtime_kwargs={"x": 1}, fallback=fallback)
        assert answer == ("taken", "d", (), {"x": 1}, fallback)

    def test_by_the_old_name_by_position(self, enabled):
        assert apply("d", {"x": 1}, fallback)[2:] == ((), {"x": 1}, fallback)

    def test_by_the_old_name_by_position_with_a_named_fallback(self, enabled):
        assert apply("d", {"x": 1}, fallback=fallback)[2:] == ((), {"x": 1}, fallback)

    def test_a_list_is_as_good_as_a_tuple(self, enabled):
        assert apply("d", [1, 2])[2] == (1, 2)

    def test_without_arguments(self, enabled):
        assert apply("d", ())[2:] == ((), None, None)
        assert apply("d", fallback=fallback)[2:] == ((), None, fallback)

    def test_the_caller_s_dict_is_not_handed_on_if_it_is_another_mapping(self, enabled):
        class Other(dict):
            pass

        given = Other(x=1)
        found = apply("d", kwargs=given)[3]
        assert found == {"x": 1}
        assert type(found) is dict


class TestNotTaken:
    def test_the_fallback_gets_the_very_arguments(self):
        x, y = object(), object()
        answer = apply("d", args=(x,), kwargs={"y": y}, fallback=fallback)
        assert answer[1][0] is x
        assert answer[2]["y"] is y

    @pytest.mark.parametrize("with_runtime", [False, True])
    def test_the_fallback_is_called_once(self, with_runtime):
        if with_runtime:
            board.push(Runtime("other"))
        calls = []
        apply("d", args=(1,), fallback=lambda *args: calls.append(args))
        apply("d", runtime_kwargs={"x": 1}, fallback=lambda **kwargs: calls.append(kwargs))
        assert calls == [(1,), {"x": 1}]

    @pytest.mark.parametrize("with_runtime", [False, True])
    def test_what_the_fallback_raises_goes_on(self, with_runtime):
        if with_runtime:
            board.push(Runtime("other"))

        def failing(*_):
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            apply("d", args=(1,), fallback=failing)

    def test_without_a_fallback_it_says_that_nothing_is_enabled(self):
        with pytest.raises(RuntimeError, match=r"'d'.*not enabled"):
            apply("d", args=(1,))

    def test_without_a_fallback_it_names_the_definition(self):
        board.push(Runtime("other"))
        with pytest.raises(RuntimeError, match="'d'"):
            apply("d", args=(1,))

    def test_unknown_names_leave_nothing_behind(self):
        board.push(Runtime("other"))
        before = len(board.calls)
        for index in range(2000):
            assert apply(f"unknown{index}", args=(), fallback=fallback) == ("fallback", (), {})
        assert len(board.calls) == before


class TestAResolver:
    def test_gets_the_arguments(self, enabled):
        seen = []

        def resolver(*args, **kwargs):
            seen.append((args, kwargs))
            return "d"

        assert apply(resolver, args=(1,), kwargs={"y": 2})[:2] == ("taken", "d")
        assert seen == [((1,), {"y": 2})]

    def test_of_the_old_form_gets_them_by_name(self, enabled):
        answer = apply(lambda x, y: f"{x}", runtime_kwargs={"x": "d", "y": 2}, fallback=fallback)
        assert answer[:2] == ("taken", "d")

    def test_that_names_an_unknown_definition(self, enabled):
        assert apply(lambda x: "unknown", args=(1,), fallback=fallback)[0] == "fallback"
        with pytest.raises(RuntimeError, match="'unknown'"):
            apply(lambda x: "unknown", args=(1,))

    def test_is_not_asked_if_nothing_is_enabled(self):
        def resolver(*_):
            raise AssertionError

        assert apply(resolver, args=(1,), fallback=fallback)[0] == "fallback"

    @pytest.mark.parametrize("answer", [None, 5, ("d",)])
    def test_that_gives_no_name(self, enabled, answer):
        assert apply(lambda x: answer, args=(1,), fallback=fallback)[0] == "fallback"
        with pytest.raises(RuntimeError, match="names no definition"):
            apply(lambda x: answer, args=(1,))

    def test_that_fails_is_logged_once(self, enabled, caplog):
        def broken_resolver_of_this_test(x):
            raise ZeroDivisionError

        for _ in range(3):
            got = apply(broken_resolver_of_this_test, args=(1,), fallback=fallback)
            assert got == ("fallback", (1,), {})
        assert len(caplog.records) == 1
        assert "broken_resolver_of_this_test" in caplog.text

    def test_that_fails_without_a_fallback_raises(self, enabled):
        with pytest.raises(ZeroDivisionError):
            apply(lambda x: 1 / 0, args=(1,))

    def test_may_be_any_object_that_can_be_called(self, enabled):
        class Resolver:
            __hash__ = None

            def __call__(self, x):
                return "d"

        assert apply(Resolver(), args=(1,))[:2] == ("taken", "d")

    def test_or_it_is_refused(self, enabled):
        with pytest.raises(ConfigError, match="neither"):
            apply(5, args=(1,))
        with pytest.raises(ConfigError, match="neither"):
            apply(5)


class TestWhatIsRefused:
    def test_arguments_in_a_string(self):
        with pytest.raises(TypeError, match="string"):
            apply("d", "xy", None, fallback)

    def test_a_dict_that_is_none(self):
        with pytest.raises(TypeError, match="kwargs is a list"):
            apply("d", (1,), [2], fallback)

    def test_a_fallback_that_cannot_be_called(self):
        with pytest.raises(TypeError, match="fallback is a int"):
            apply("d", [1], None, 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (((), None, None), ((), None, None)),
        ((None, None, None), ((), None, None)),
        (([1], {}, None), ((1,), None, None)),
        (((1,), {"y": 2}, len), ((1,), {"y": 2}, len)),
        (({"x": 1}, None, None), ((), {"x": 1}, None)),
        (({"x": 1}, len, None), ((), {"x": 1}, len)),
        (({"x": 1}, None, len), ((), {"x": 1}, len)),
    ],
)
def test_the_forms_of_arguments(given, expected):
    assert arguments(*given) == expected


class TestTheModuleIsTheFunction:
    def test_it_can_be_called(self, enabled):
        assert flashinfer_bench.apply("d", (1,))[:2] == ("taken", "d")

    def test_it_decorates(self, enabled):
        @flashinfer_bench.apply("d")
        def function(x):
            return x

        assert function(1)[:3] == ("taken", "d", (1,))

    def test_it_is_a_module_none_the_less(self):
        assert flashinfer_bench.apply.enable_apply is not None
        assert "enable_apply" in dir(flashinfer_bench.apply)
        with pytest.raises(AttributeError, match="nonsense"):
            _ = flashinfer_bench.apply.nonsense


class TestOldNamesOfTheRuntime:
    def test_the_innermost_is_the_runtime(self, enabled):
        assert get_runtime() is enabled
        board.push(inner := Runtime("e"))
        assert get_runtime() is inner

    def test_there_may_be_none(self):
        assert get_runtime() is None

    def test_setting_one_replaces_all(self, enabled):
        other = Runtime("e")
        set_runtime(other)
        assert board.active == (other,)
        set_runtime(None)
        assert board.active == ()

    def test_something_else_is_refused_and_changes_nothing(self, enabled):
        with pytest.raises(ConfigError, match="route"):
            set_runtime(object())
        assert get_runtime() is enabled


class TestTheHook:
    @pytest.fixture(autouse=True)
    def no_hook(self):
        yield
        set_apply_hook(None)

    def test_is_told_of_calls(self, enabled):
        seen = []
        set_apply_hook(lambda name, arguments: seen.append((name, dict(arguments))))
        assert apply("d", runtime_kwargs={"x": 1}, fallback=fallback)[0] == "taken"
        assert apply("e", args=(1, 2), fallback=fallback)[0] == "fallback"
        assert seen == [("d", {"x": 1}), ("e", {"0": 1, "1": 2})]

    def test_knows_the_names_of_a_decorated_function(self):
        seen = []

        @apply("d")
        def function(x, y=2, *rest, z=3):
            return x

        set_apply_hook(lambda name, arguments: seen.append(dict(arguments)))
        function(1)
        function(1, 5, 6, z=7)
        assert seen == [{"x": 1, "y": 2, "z": 3}, {"x": 1, "y": 5, "2": 6, "z": 7}]

    def test_of_a_function_that_names_nothing(self):
        seen = []

        @apply("d")
        def function(*args, **kwargs):
            return args

        set_apply_hook(lambda name, arguments: seen.append(dict(arguments)))
        function(1, z=7)
        assert seen == [{"0": 1, "z": 7}]

    def test_one_takes_the_place_of_another(self):
        first, second = [], []
        set_apply_hook(lambda *call: first.append(call))
        set_apply_hook(hook := lambda *call: second.append(call))
        assert get_apply_hook() is hook
        apply("d", args=(), fallback=fallback)
        assert (len(first), len(second)) == (0, 1)

    def test_can_be_taken_off(self):
        seen = []
        set_apply_hook(lambda *call: seen.append(call))
        set_apply_hook(None)
        apply("d", args=(), fallback=fallback)
        assert seen == []
        assert get_apply_hook()("d", {}) is None

    def test_that_fails_breaks_nothing(self, caplog):
        set_apply_hook(lambda *_: 1 / 0)
        assert apply("d", args=(1,), fallback=fallback)[0] == "fallback"
        assert "ZeroDivisionError" in caplog.text

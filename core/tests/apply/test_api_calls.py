"""Single calls: ``apply(name, args, kwargs, fallback)`` in all its forms."""

from __future__ import annotations

import inspect

import pytest

import flashinfer_bench.apply
from flashinfer_bench.apply import apply, get_runtime, set_runtime
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import router

pytestmark = pytest.mark.usefixtures("enable")


@pytest.fixture
def enabled(enable):
    return enable("d")


def fallback(*args, **kwargs):
    return ("fallback", args, kwargs)


class TestTaken:
    def test_by_position(self, enabled):
        assert apply("d", (1, 2), None, fallback) == ("taken", "d", (1, 2), None, fallback)

    def test_by_position_and_name(self, enabled):
        answer = apply("d", args=(1,), kwargs={"y": 2}, fallback=fallback)
        assert answer == ("taken", "d", (1,), {"y": 2}, fallback)

    def test_by_name(self, enabled):
        assert apply("d", kwargs={"x": 1})[2:] == ((), {"x": 1}, None)

    def test_by_the_old_name_by_position(self, enabled):
        assert apply("d", {"x": 1}, fallback)[2:] == ((), {"x": 1}, fallback)

    def test_without_arguments(self, enabled):
        assert apply("d", ())[2:] == ((), None, None)
        assert apply("d", fallback=fallback)[2:] == ((), None, fallback)


class TestNotTaken:
    def test_the_fallback_gets_the_very_arguments(self):
        x, y = object(), object()
        answer = apply("d", args=(x,), kwargs={"y": y}, fallback=fallback)
        assert answer[1][0] is x
        assert answer[2]["y"] is y

    def test_without_a_fallback_it_says_that_nothing_is_enabled(self):
        with pytest.raises(RuntimeError, match=r"'d'.*not enabled"):
            apply("d", args=(1,))

    def test_without_a_fallback_it_names_the_definition(self, enable):
        enable("other")
        with pytest.raises(RuntimeError, match="'d'"):
            apply("d", args=(1,))


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

    @pytest.mark.parametrize("answer", [None, 5, ("d",)])
    def test_that_gives_no_name(self, enabled, answer):
        assert apply(lambda x: answer, args=(1,), fallback=fallback)[0] == "fallback"
        with pytest.raises(RuntimeError, match="not a definition name"):
            apply(lambda x: answer, args=(1,))

    def test_that_fails_is_logged_once(self, enabled, caplog):
        def broken_resolver_of_this_test(x):
            raise ZeroDivisionError

        for _ in range(3):
            got = apply(broken_resolver_of_this_test, args=(1,), fallback=fallback)
            assert got == ("fallback", (1,), {})
        assert len(caplog.records) == 1
        assert "broken_resolver_of_this_test" in caplog.text

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


class TestTheModuleIsTheFunction:
    def test_it_can_be_called(self, enabled):
        assert flashinfer_bench.apply("d", (1,))[:2] == ("taken", "d")

    def test_it_is_a_module_none_the_less(self):
        assert flashinfer_bench.apply.enable_apply is not None
        assert "enable_apply" in dir(flashinfer_bench.apply)
        with pytest.raises(AttributeError, match="nonsense"):
            _ = flashinfer_bench.apply.nonsense

    def test_its_parameters_are_all_shown(self):
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
        other = type(enabled)("e")
        set_runtime(other)
        assert router.active == (other,)
        set_runtime(None)
        assert router.active == ()

    def test_something_else_is_refused_and_changes_nothing(self, enabled):
        with pytest.raises(ConfigError, match="has no dispatch"):
            set_runtime(object())
        assert get_runtime() is enabled

"""One plugin at a time: which hooks it has, what they return, and how failures are kept apart."""

from __future__ import annotations

import sys
import types

import pytest

from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins import BuilderSpec, TimerSpec, hookimpl
from flashinfer_bench.plugins.loader import HEAVY, MAX_RECORDS, Loaded, gather, hooks_of
from flashinfer_bench.plugins.sources import Source

BUILDER = BuilderSpec(name="b", handles=(("b", None),), factory="m:B")
TIMER = TimerSpec(name="t", devices=("cpu",), factory="m:T")


def plugin_of(**functions):
    """A module with these hook implementations; marks what is not marked yet."""
    module = types.ModuleType("plugin")
    for name, function in functions.items():
        marked = hasattr(function, "flashinfer_bench_impl")
        setattr(module, name, function if marked else hookimpl(function))
    return module


def loaded(plugin):
    """Load `plugin`, an object or a function that returns or raises."""
    load = plugin if isinstance(plugin, types.FunctionType) else lambda: plugin
    result = Loaded(Source("p", "dist", "1.0", "module", load))
    result.run()
    return result


# ------------------------------------------------------------------ which hooks a plugin has


def test_hooks_are_found_by_their_names():
    found = hooks_of(
        plugin_of(fib_register_timers=lambda: [TIMER], fib_register_builders=lambda: [BUILDER])
    )
    assert set(found) == {"fib_register_timers", "fib_register_builders"}
    assert found["fib_register_timers"]() == [TIMER]


def test_a_hook_may_have_another_function_name():
    @hookimpl(specname="fib_register_timers")
    def my_timers():
        return [TIMER]

    assert list(hooks_of(plugin_of(my_timers=my_timers))) == ["fib_register_timers"]


def test_an_object_can_be_a_plugin():
    class Plugin:
        @hookimpl
        def fib_register_timers(self):
            return [TIMER]

    assert hooks_of(Plugin())["fib_register_timers"]() == [TIMER]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("fib_register_builder", "did you mean fib_register_builders?"),
        ("fib_register_bulders", "did you mean fib_register_builders?"),
        ("fib_register_keybuilders", "did you mean fib_register_key_builders?"),
        ("register_timers", "did you mean fib_register_timers?"),
        ("something_else", "there are: fib_register_builders, fib_register_timers, "),
    ],
)
def test_a_hook_that_does_not_exist_is_refused_with_the_nearest(name, advice):
    plugin = plugin_of(**{name: lambda: (), "fib_register_timers": lambda: [TIMER]})
    with pytest.raises(PluginLoadError) as raised:
        hooks_of(plugin)
    assert f"there is no hook {name}; {advice}" in str(raised.value)


def test_a_hook_of_a_later_version_can_be_marked_as_optional():
    @hookimpl(optionalhook=True)
    def fib_register_dreams():
        raise AssertionError("never called")

    plugin = plugin_of(fib_register_dreams=fib_register_dreams, fib_register_timers=lambda: [TIMER])
    assert list(hooks_of(plugin)) == ["fib_register_timers"]


def test_a_hook_that_is_not_marked_is_pointed_out():
    plugin = plugin_of(fib_register_timers=lambda: [TIMER])
    plugin.fib_register_builders = lambda: [BUILDER]
    with pytest.raises(PluginLoadError, match="fib_register_builders is not marked with @hookimpl"):
        hooks_of(plugin)


@pytest.mark.parametrize("plugin", [types.ModuleType("empty"), object(), None, 3, "text"])
def test_something_without_hooks_is_no_plugin(plugin):
    with pytest.raises(PluginLoadError, match="no function that is marked with @hookimpl"):
        hooks_of(plugin)


def test_a_hook_takes_no_arguments():
    result = loaded(plugin_of(fib_register_timers=lambda registry: ()))
    status = result.status()
    assert status.state == "broken"
    assert "was refused: PluginValidationError: " in status.reason
    assert "registry" in status.reason


def test_an_argument_with_a_default_is_left_at_it():
    assert loaded(plugin_of(fib_register_timers=lambda more=(TIMER,): more)).records == [TIMER]


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
def test_a_registration_hook_cannot_be_wrapped(option):
    @hookimpl(**{option: True})
    def fib_register_timers():
        yield

    with pytest.raises(PluginLoadError, match="implemented twice or as a wrapper"):
        hooks_of(plugin_of(fib_register_timers=fib_register_timers))


def test_two_implementations_of_one_hook_are_refused():
    @hookimpl(specname="fib_register_timers")
    def more_timers():
        return []

    plugin = plugin_of(fib_register_timers=lambda: [TIMER], more_timers=more_timers)
    with pytest.raises(PluginLoadError, match="implemented twice"):
        hooks_of(plugin)


def test_lazy_exports_of_a_plugin_are_left_alone():
    plugin = plugin_of(fib_register_timers=lambda: [TIMER])
    asked = []

    def lazy(name):
        if name == "Heavy":  # pluggy itself asks for some dunder names
            asked.append(name)
        raise AttributeError(name)

    plugin.__getattr__ = lazy
    plugin.__dir__ = lambda: ["Heavy", "fib_register_timers"]
    assert list(hooks_of(plugin)) == ["fib_register_timers"]
    assert asked == []


def test_properties_of_a_plugin_are_not_computed():
    class Plugin:
        @property
        def heavy(self):
            raise AssertionError("computed")

        @hookimpl
        def fib_register_timers(self):
            return [TIMER]

    assert list(hooks_of(Plugin())) == ["fib_register_timers"]


def test_what_one_plugin_registers_is_unknown_to_the_next():
    bad = plugin_of(fib_register_builders=lambda: [BUILDER], fib_register_timers=lambda x: ())
    assert loaded(bad).records == []
    assert loaded(plugin_of(fib_register_timers=lambda: [TIMER])).records == [TIMER]


# ------------------------------------------------------------------ what a hook returns


@pytest.mark.parametrize("container", [list, tuple, iter, set, lambda r: (each for each in r)])
def test_any_iterable_will_do(container):
    assert gather("fib_register_builders", lambda: container([BUILDER])) == [BUILDER]


@pytest.mark.parametrize("nothing", [(), [], iter(())])
def test_nothing_to_register_is_no_error(nothing):
    assert gather("fib_register_builders", lambda: nothing) == []


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None, not an iterable of BuilderSpec"),
        (BUILDER, "returned a value of type BuilderSpec, not an iterable of BuilderSpec"),
        ("text", "returned a value of type str, not an iterable of BuilderSpec"),
        (7, "returned a value of type int, not an iterable of BuilderSpec"),
        ([None], "returned None where a BuilderSpec belongs"),
        ([BUILDER, TIMER], "returned a value of type TimerSpec where a BuilderSpec belongs"),
        ([BuilderSpec], "returned a value of type type where a BuilderSpec belongs"),
        ({"name": 1}, "returned a value of type str where a BuilderSpec belongs"),
    ],
)
def test_anything_else_is_refused(returned, told):
    with pytest.raises(PluginLoadError, match=f"fib_register_builders {told}"):
        gather("fib_register_builders", lambda: returned)


def test_a_coroutine_is_refused_and_closed():
    async def fib_register_builders():
        return [BUILDER]

    # That it is closed shows in that nothing warns about a coroutine that was never awaited.
    with pytest.raises(PluginLoadError, match="returned a value of type coroutine"):
        gather("fib_register_builders", fib_register_builders)


def test_a_generator_without_end_is_cut_off():
    def endless():
        while True:
            yield BUILDER

    with pytest.raises(PluginLoadError, match=f"more than {MAX_RECORDS} records"):
        gather("fib_register_builders", endless)


# ------------------------------------------------------------------ what is kept, what is told


def test_a_plugin_in_good_order():
    result = loaded(
        plugin_of(fib_register_timers=lambda: [TIMER], fib_register_builders=lambda: [BUILDER])
    )
    status = result.status()
    assert status.state == "ok"
    assert (status.reason, status.traceback) == ("", "")
    assert status.records == (("builder", "b"), ("timer", "t"))
    assert status.load_ms > 0
    assert result.errors == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ImportError("libcuda.so.1"), "failed to load: ImportError: libcuda.so.1"),
        (SystemExit(), "failed to load: SystemExit: it called sys.exit()"),
        (RecursionError(), "failed to load: RecursionError"),
        (type("Panic", (BaseException,), {})("rust"), "failed to load: Panic: rust"),
        (ValueError("x" * 10_000), "failed to load: ValueError: xxx"),
    ],
)
def test_whatever_the_import_raises_costs_this_plugin_alone(error, told):
    def load():
        raise error

    status = loaded(load).status()
    assert status.state == "broken"
    assert status.reason.startswith(told)
    assert len(status.reason) < 500
    assert type(error).__name__ in status.traceback


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_the_user_can_interrupt_an_import(error):
    def load():
        raise error

    with pytest.raises(error):
        loaded(load)


def test_the_user_can_interrupt_a_hook():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loaded(plugin_of(fib_register_timers=interrupted))


def test_each_hook_fails_on_its_own():
    def midway():
        yield BUILDER
        raise RuntimeError("half way")

    def wrong():
        return None

    result = loaded(
        plugin_of(
            fib_register_builders=midway,
            fib_register_key_builders=wrong,
            fib_register_timers=lambda: [TIMER],
        )
    )
    status = result.status()
    assert result.records == [TIMER]
    assert status.state == "broken"
    assert set(status.reason.split("; ")) == {
        "raised in fib_register_builders: RuntimeError: half way",
        "fib_register_key_builders returned None, not an iterable of KeyBuilderSpec",
    }
    assert status.traceback.count("Traceback (most recent call last)") == 1
    assert 'raise RuntimeError("half way")' in status.traceback


def test_an_invalid_record_names_itself_in_the_reason():
    def fib_register_timers():
        yield TimerSpec(name="bad", devices=("cuda:0",), factory="m:T")

    status = loaded(plugin_of(fib_register_timers=fib_register_timers)).status()
    assert "TimerSpec 'bad': devices holds 'cuda:0'" in status.reason


def test_a_very_long_traceback_is_cut():
    def deep(n):
        if n:
            deep(n - 1)
        raise ValueError("x" * 100_000)

    status = loaded(plugin_of(fib_register_timers=lambda: deep(5))).status()
    assert len(status.traceback) < 41_000
    assert "characters left out" in status.traceback


def test_a_heavy_import_is_noted(monkeypatch):
    name = next(name for name in HEAVY if name not in sys.modules)

    def load():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        return plugin_of(fib_register_timers=lambda: [TIMER])

    status = loaded(load).status()
    assert status.heavy_imports == (name,)
    assert status.state == "ok"
    again = loaded(plugin_of(fib_register_timers=lambda: [TIMER])).status()
    assert again.heavy_imports == ()  # what was there before is not this plugin's doing


def test_a_blocked_plugin_has_its_reason():
    result = Loaded(Source("p", "dist", "1.0", "module", lambda: 1 / 0))
    result.block("is disabled by FIB_DISABLE_PLUGINS")
    status = result.status()
    assert status.state == "blocked"
    assert status.sentence() == "Plugin dist 1.0 is disabled by FIB_DISABLE_PLUGINS"


def test_refused_records_are_not_among_the_contributed_ones():
    result = loaded(plugin_of(fib_register_timers=lambda: [TIMER]))
    assert result.status({("timer", "t")}).records == ()


# ---------------------------------------------------------------------------- hostile plugins


class Unspeakable(BaseException):
    def __str__(self):
        raise SystemExit(3)


class Untraceable(Exception):
    @property
    def __cause__(self):
        raise SystemExit(4)

    __context__ = __cause__


class Nameless(BuilderSpec):
    @property
    def name(self):
        raise RuntimeError("no name for you")


class Tagged(BuilderSpec):
    """A record of a type of the plugin's own."""


@pytest.mark.parametrize("error", [Unspeakable, Untraceable])
def test_an_exception_that_raises_when_it_is_shown(error):
    def fail():
        raise error

    status = loaded(fail).status()
    assert status.state == "broken"
    assert error.__name__ in status.reason
    status = loaded(plugin_of(fib_register_builders=fail)).status()
    assert status.state == "broken"
    assert error.__name__ in status.traceback


@pytest.mark.parametrize("record_type", [Nameless, BuilderSpec])
def test_a_record_that_was_made_past_its_checks(record_type):
    hollow = object.__new__(record_type)
    result = loaded(plugin_of(fib_register_builders=lambda: [BUILDER, hollow]))
    assert result.records == []
    assert result.status().state == "broken"


def test_a_record_whose_content_was_changed_past_its_checks():
    spoiled = BuilderSpec(name="b", handles=(("b", None),), factory="m:B")
    object.__setattr__(spoiled, "priority", "high")
    result = loaded(plugin_of(fib_register_builders=lambda: [spoiled]))
    assert result.records == []
    assert "priority" in result.status().reason


def test_a_record_of_a_derived_type_becomes_an_ordinary_one():
    tagged = Tagged(name="b", handles=(("b", None),), factory="m:B")
    (record,) = gather("fib_register_builders", lambda: [tagged])
    assert type(record) is BuilderSpec
    assert record == BUILDER

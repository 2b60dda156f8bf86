"""A plugin of any kind that is broken in any way loses only itself; what a plugin may be."""

from __future__ import annotations

import logging
import sys
import types
from dataclasses import MISSING, fields
from itertools import cycle, repeat

import pytest

from flashinfer_bench.errors import CapabilityError, PluginError
from flashinfer_bench.plugins import KINDS, Settings, discover, hookimpl
from flashinfer_bench.plugins.records import hook_of

VALUES = {"handles": (("broken-language", None),), "layer": "broken", "devices": ("cpu",)}


def record(kind, **changes):
    spec = KINDS[kind]
    required = {each.name for each in fields(spec) if each.default is MISSING} - {"name", "factory"}
    own = {name: VALUES.get(name, ("broken",)) for name in required}
    return spec(**{"name": "broken", "factory": "no_such_module:x", **own, **changes})


def midway(kind):
    yield record(kind)
    raise KeyError("second")


# What a hook does, and what is said of it.
WAYS = {
    "raises": (lambda kind: [][0], "IndexError: list index out of range"),
    "exits": (lambda kind: sys.exit(3), "it called sys.exit(3)"),
    "midway": (midway, "KeyError: 'second'"),
    "endless": (lambda kind: repeat(record(kind)), "returned more than 1000 records"),
    "other type": (lambda kind: [record("report")], "not a value of type ReportSpec"),
    "no record": (lambda kind: ["text"], "not a value of type str"),
    "nothing": (lambda kind: None, "must return an iterable"),
    "twice": (lambda kind: [record(kind), record(kind)], "more than once; both are refused"),
    "bad field": (lambda kind: [record(kind, priority="high")], "Expected `int`, got `str`"),
}


@pytest.fixture
def install(monkeypatch):
    """Makes modules that `discover` loads; returns the catalog."""

    def run(strict=False, plugin=None, **hooks):
        module = plugin or types.ModuleType("fib_test_broken")
        for name, function in hooks.items():
            marked = hasattr(function, "flashinfer_bench_impl")
            setattr(module, name, function if marked else hookimpl(function))
        good = types.ModuleType("fib_test_good")
        good.fib_register_commands = hookimpl(
            lambda: [KINDS["command"](name="good", factory="m:x")]
        )
        monkeypatch.setitem(sys.modules, "fib_test_broken", module)
        monkeypatch.setitem(sys.modules, "fib_test_good", good)
        names = ("fib_test_broken", "fib_test_good")
        return discover(Settings(no_plugins=True, modules=names, strict=strict))

    return run


def status_in(catalog):
    return next(each for each in catalog.plugins if each.name == "fib_test_broken")


@pytest.mark.parametrize(("kind", "way"), list(zip(KINDS, cycle(WAYS))))
def test_a_broken_plugin_loses_only_itself(install, kind, way, caplog):
    hook, told = WAYS[way]
    hooks = {hook_of(kind): lambda: hook(kind)}
    catalog = install(**hooks)
    status = status_in(catalog)
    assert status.state == "broken"
    assert told in status.reason
    assert "broken" not in catalog.entries(kind).names
    assert catalog.find("command", "good").plugin == "fib_test_good"
    assert catalog.plugins[0].state == "ok"
    warned = [each.message for each in caplog.records if "fib_test_broken" in each.message]
    assert len(warned) == 1
    with pytest.raises(CapabilityError, match=r"fib_test_broken|registered by"):
        catalog.find(kind, "broken")
    with pytest.raises(PluginError):
        install(strict=True, **hooks)


def timers(*found):
    return lambda: found


def test_each_hook_fails_on_its_own(install):
    catalog = install(
        fib_register_builders=lambda: midway("builder"),
        fib_register_key_builders=lambda: None,
        fib_register_timers=timers(record("timer", name="mine")),
    )
    status = status_in(catalog)
    assert status.records == (("timer", "mine"),)
    assert set(status.reason.split("; ")) == {
        "raised in fib_register_builders: KeyError: 'second'",
        "fib_register_key_builders must return an iterable of KeyBuilderSpec, not None",
    }
    assert status.traceback.count("Traceback (most recent call last)") == 1
    assert 'raise KeyError("second")' in status.traceback


class Unspeakable(BaseException):
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(), "SystemExit: it called sys.exit()"),
        (type("Panic", (BaseException,), {})("rust"), "Panic: rust"),
        (ValueError("x" * 100_000), "ValueError: xxx"),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_whatever_is_raised_is_told_in_short(install, error, told):
    def fib_register_timers():
        raise error

    status = status_in(install(fib_register_timers=fib_register_timers))
    assert status.reason.startswith(f"raised in fib_register_timers: {told}")
    assert len(status.reason) < 500
    assert len(status.traceback) < 41_000
    assert type(error).__name__ in status.traceback


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_the_user_can_interrupt_a_hook(install, error):
    def fib_register_timers():
        raise error

    with pytest.raises(error):
        install(fib_register_timers=fib_register_timers)


def wrapping():
    yield


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        ({}, "no function is marked with @hookimpl"),
        ({"fib_register_timer": timers()}, "did you mean fib_register_timers?"),
        ({"fib_register_timers": lambda registry: ()}, "TypeError: "),
        ({"fib_register_timers": hookimpl(wrapper=True)(wrapping)}, "twice or as a wrapper"),
        (
            {
                "fib_register_timers": timers(),
                "more": hookimpl(specname="fib_register_timers")(timers()),
            },
            "twice or as a wrapper",
        ),
    ],
)
def test_hooks_that_are_not_as_specified_are_refused(install, hooks, told):
    assert told in status_in(install(**hooks)).reason


def test_a_hook_that_is_not_marked_is_pointed_out(install):
    module = types.ModuleType("fib_test_broken")
    module.fib_register_timers = timers()
    assert "is not marked with @hookimpl" in status_in(install(plugin=module)).reason


def test_other_names_defaults_and_hooks_of_later_versions_are_allowed(install):
    catalog = install(
        mine=hookimpl(specname="fib_register_timers")(
            lambda more=("x",): [record("timer", name=name) for name in more]
        ),
        fib_register_dreams=hookimpl(optionalhook=True)(timers()),
    )
    assert status_in(catalog).state == "ok"
    assert catalog.find("timer", "x")


def test_a_heavy_import_is_noted(install, monkeypatch):
    def fib_register_timers():
        monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
        return []

    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert status_in(install(fib_register_timers=fib_register_timers)).heavy_imports == ("jax",)
    # What was there before is not this plugin's doing.
    assert status_in(install(fib_register_timers=fib_register_timers)).heavy_imports == ()


# ------------------------------------------------------------------ lifecycle hooks


def test_lifecycle_hooks_are_called_with_what_they_ask_for(install):
    told = []
    catalog = install(
        fib_run_started=lambda run: told.append(("started", run)),
        fib_evaluated=lambda trace: told.append(("evaluated", trace)),
        fib_run_finished=lambda: told.append("finished"),
    )
    catalog.hook.fib_run_started(run=1)
    catalog.hook.fib_evaluated(run=1, trace=2)
    catalog.hook.fib_run_finished(run=1)
    assert told == [("started", 1), ("evaluated", 2), "finished"]


def test_one_that_raises_is_told_once_and_ends_nothing(install, caplog):
    told = []

    def fib_run_started(run):
        raise OSError("no network")

    catalog = install(fib_run_started=fib_run_started, fib_evaluated=lambda: told.append(1))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert catalog.hook.fib_run_started(run=1) == []
            catalog.hook.fib_evaluated(run=1, trace=2)
    assert told == [1, 1, 1]
    (message,) = [each.message for each in caplog.records]
    assert message == "Plugin fib_test_broken raised in fib_run_started: OSError: no network"


def test_in_strict_mode_it_raises(install):
    catalog = install(strict=True, fib_run_started=lambda run: 1 / 0)
    with pytest.raises(PluginError, match="raised in fib_run_started: ZeroDivisionError"):
        catalog.hook.fib_run_started(run=1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, []),
        ("too quick", ["too quick (veto of plugin fib_test_broken)"]),
        ("two\nlines", ["two lines (veto of plugin fib_test_broken)"]),
        (True, []),
        ("", []),
    ],
)
def test_a_veto_is_a_text_and_names_its_plugin(install, answer, said):
    catalog = install(fib_veto=lambda measurement: answer)
    assert catalog.hook.fib_veto(run=1, measurement=2) == said


@pytest.mark.parametrize(("answer", "said"), [(None, []), ({"a": 1}, [{"a": 1}]), ("text", [])])
def test_provenance_is_a_dictionary(install, answer, said):
    catalog = install(fib_provenance=lambda solution: answer)
    asked = {"run": 1, "baseline": 2, "solution": 3, "builder": ""}
    assert catalog.hook.fib_provenance(**asked) == said


def test_an_argument_that_a_hook_does_not_have_is_refused(install):
    catalog = install(fib_evaluated=lambda result: None)
    assert "was refused: PluginValidationError" in status_in(catalog).reason
    catalog.hook.fib_evaluated(run=1, trace=2)

"""The documentation of the hooks, held against what the host does."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from textwrap import dedent

import pytest

from flashinfer_bench import plugins
from flashinfer_bench.plugins import (
    KINDS,
    Availability,
    Settings,
    builtin,
    discover,
    hook_of,
    hookspecs,
)
from flashinfer_bench.plugins.manager import HOOKS, hooks_of


def example_in(documented):
    """Return the code block of the Examples section."""
    text = inspect.getdoc(documented)
    return dedent(text.split("Examples\n--------\n::\n")[1].split(".. versionadded::")[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_works_as_it_stands(kind):
    hook = hook_of(kind)
    namespace = {name: getattr(plugins, name) for name in dir(plugins)}
    exec(example_in(KINDS[kind]), namespace)
    (found,) = hooks_of(type("Plugin", (), {hook: staticmethod(namespace[hook])})).items()
    assert found[0] == hook
    (record, *_) = found[1]()
    assert type(record) is KINDS[kind]
    assert {record}, "it is frozen, so it has a hash"
    assert record.summary


@pytest.mark.parametrize("hook", [name for name in HOOKS if "register" not in name])
def test_the_example_of_a_lifecycle_hook_is_one(hook):
    namespace = {"hookimpl": plugins.hookimpl}
    exec(example_in(getattr(hookspecs, hook)), namespace)
    parameters = set(inspect.signature(namespace[hook]).parameters)
    assert parameters <= set(inspect.signature(getattr(hookspecs, hook)).parameters)


CORE = discover(Settings(no_plugins=True))


def test_core_goes_through_the_same_checks_as_any_plugin():
    found = hooks_of(builtin)
    assert "fib_register_commands" in found
    assert all(name.startswith("fib_register_") for name in found)
    records = {record.name for function in found.values() for record in function()}
    assert records == {entry.name for entry in CORE}


def test_each_record_names_modules_that_exist_and_no_probe_fails():
    for entry in CORE:
        for path in filter(None, (*entry.spec.paths, entry.spec.probe)):
            assert find_spec(path.partition(":")[0]) is not None, path
        assert entry.spec.summary
        assert isinstance(entry.availability(), Availability)
        assert entry.check is None or entry.check.failure is None

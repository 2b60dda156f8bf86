"""The documentation of the hooks, held against what the host does."""

from __future__ import annotations

import inspect
from textwrap import dedent

import pytest

from flashinfer_bench import plugins
from flashinfer_bench.plugins import KINDS, hookspecs
from flashinfer_bench.plugins.loader import HOOKS, gather, hooks_of

every_hook = pytest.mark.parametrize("hook", HOOKS)


def example_in(docstring):
    """Return the code block of the Examples section."""
    block = docstring.split("Examples\n--------\n::\n")[1].split(".. versionadded::")[0]
    return dedent(block)


@every_hook
def test_there_is_a_spec_for_each_kind_and_none_besides(hook):
    specs = {name for name in vars(hookspecs) if name.startswith("fib_")}
    assert specs == set(HOOKS)
    assert len(HOOKS) == len(KINDS)


@every_hook
def test_a_spec_says_when_it_is_called_what_to_return_and_since_when(hook):
    text = inspect.getdoc(getattr(hookspecs, hook))
    record = HOOKS[hook].__name__
    assert "Called once, when the plugins are discovered" in text
    assert f"Returns\n-------\niterable of {record}\n" in text
    assert ".. versionadded:: " in text


@every_hook
def test_a_spec_is_typed_and_takes_nothing(hook):
    function = getattr(hookspecs, hook)
    assert inspect.signature(function).parameters == {}
    assert function.__annotations__["return"] == f"Iterable[{HOOKS[hook].__name__}]"
    assert list(function()) == []


@every_hook
def test_the_example_of_a_spec_works_as_it_stands(hook):
    namespace = {name: getattr(plugins, name) for name in dir(plugins)}
    exec(example_in(inspect.getdoc(getattr(hookspecs, hook))), namespace)

    class Plugin:
        pass

    plugin = Plugin()
    setattr(plugin, hook, namespace[hook])
    (found,) = hooks_of(plugin).items()
    assert found[0] == hook
    (record,) = gather(*found)
    assert type(record) is HOOKS[hook]
    assert record.summary


def test_the_version_of_the_interface_is_a_pair():
    major, minor = plugins.PLUGIN_API
    assert (major, minor) >= (1, 0)

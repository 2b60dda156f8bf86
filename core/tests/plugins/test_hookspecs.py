"""The documentation of the hooks, held against what the host does."""

from __future__ import annotations

import inspect
from textwrap import dedent

import pytest

from flashinfer_bench import plugins
from flashinfer_bench.plugins import KINDS, hookspecs
from flashinfer_bench.plugins.manager import HOOKS, RECORDS, hooks_of

every_hook = pytest.mark.parametrize("hook", RECORDS)


def example_in(docstring):
    """Return the code block of the Examples section."""
    block = docstring.split("Examples\n--------\n::\n")[1].split(".. versionadded::")[0]
    return dedent(block)


def test_there_is_a_documented_spec_for_each_kind():
    assert len(RECORDS) == len(KINDS)
    for hook, record in RECORDS.items():
        function = getattr(hookspecs, hook)
        text = inspect.getdoc(function)
        assert "Called once, when the plugins are discovered" in text
        assert f"Returns\n-------\niterable of {record.__name__}\n" in text
        assert ".. versionadded:: " in text
        assert inspect.signature(function).parameters == {}
        assert function.__annotations__["return"] == f"Iterable[records.{record.__name__}]"
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
    (record, *_) = found[1]()
    assert type(record) is RECORDS[hook]
    assert record.summary


@pytest.mark.parametrize("hook", [name for name in HOOKS if name not in RECORDS])
def test_the_example_of_a_lifecycle_hook_is_one(hook):
    text = inspect.getdoc(getattr(hookspecs, hook))
    namespace = {"hookimpl": plugins.hookimpl}
    exec(example_in(text), namespace)
    parameters = set(inspect.signature(namespace[hook]).parameters)
    assert parameters <= set(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert ".. versionadded:: " in text

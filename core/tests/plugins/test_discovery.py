"""Discovery in this process: strictness, warnings, conflicts, and the catalog of the process."""

from __future__ import annotations

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.errors import ConfigError, PluginError
from flashinfer_bench.plugins import (
    Settings,
    default_catalog,
    discover,
    reset_default_catalog,
)

TIMER = "TimerSpec(name={name!r}, devices=('cpu',), factory='m:T'{more})"
HOOK = """
from flashinfer_bench.plugins import TimerSpec, hookimpl

@hookimpl
def fib_register_timers():
    yield {timer}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Write modules where they can be imported; returns settings that load them and no others."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(settings=None, **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        return Settings(no_plugins=True, modules=tuple(modules), **(settings or {}))

    return write


def timer(name, more=""):
    return HOOK.format(timer=TIMER.format(name=name, more=more))


def states(catalog):
    return {plugin.name: plugin.state for plugin in catalog.plugins if plugin.state != "blocked"}


# ------------------------------------------------------------------ conflicts


def test_a_name_of_core_is_no_exception(place):
    catalog = discover(place(fib_test_cpu=timer("cpu")))
    assert states(catalog) == {"core": "broken", "fib_test_cpu": "broken"}
    assert catalog.timers == ()
    core = catalog.plugins[0]
    assert ("timer", "cpu") not in core.records
    assert ("executor", "fork") in core.records


# ------------------------------------------------------------------ probes


def test_records_that_name_one_probe_share_its_answer(place):
    more = ", probe='fib_test_shared:check'"
    source = (
        timer("one", more)
        + f"    yield {TIMER.format(name='two', more=more)}\n"
        + "calls = []\n"
        + "def check():\n"
        + "    from flashinfer_bench.plugins import Availability\n"
        + "    calls.append(1)\n"
        + "    return Availability(False, f'call {len(calls)}')\n"
    )
    catalog = discover(place(fib_test_shared=source))
    for name in ("one", "two", "one"):
        assert catalog.find("timer", name).availability().reason == "call 1"


# ------------------------------------------------------------------ the catalog of the process


def test_resetting_reads_the_environment_anew(place, monkeypatch):
    place(fib_test_reset=timer("late"))
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    first = default_catalog()
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_reset")
    assert default_catalog() is first
    reset_default_catalog()
    assert default_catalog().find("timer", "late")


def test_threads_get_the_same_catalog(monkeypatch):
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    assert len({id(catalog) for catalog in at_once(6, default_catalog)}) == 1


def test_a_plugin_that_asks_for_the_catalog_while_being_loaded_is_broken(place, monkeypatch):
    place(
        fib_test_early="from flashinfer_bench.plugins import default_catalog\ndefault_catalog()\n"
    )
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_early")
    catalog = default_catalog()
    status = next(plugin for plugin in catalog.plugins if plugin.name == "fib_test_early")
    assert "default_catalog() was called by a plugin that is still being loaded" in status.reason
    assert default_catalog() is catalog


def test_a_failed_discovery_is_tried_again(place, monkeypatch):
    place(fib_test_retry="raise ValueError")
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_retry")
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(PluginError):
            default_catalog()
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "0")
    assert default_catalog().find("timer", "cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIB_NO_PLUGINS", "perhaps"),
        ("FIB_STRICT_PLUGINS", "2"),
        ("FIB_PROBE_TIMEOUT_S", "soon"),
    ],
)
def test_a_variable_that_makes_no_sense_is_an_error_and_no_default(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        default_catalog()

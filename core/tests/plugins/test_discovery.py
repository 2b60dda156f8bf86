"""Discovery in this process: strictness, warnings, conflicts, and the catalog of the process."""

from __future__ import annotations

import logging
import sys

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.errors import ConfigError, PluginError
from flashinfer_bench.plugins import (
    PluginStatus,
    Settings,
    default_catalog,
    discover,
    reset_default_catalog,
)
from flashinfer_bench.plugins.manager import installed_sources, sources

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


# ------------------------------------------------------------------------- where plugins are found


GROUP = "[flashinfer_bench.plugins]\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder that is the only one in which distributions are looked for."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def add(folder, name, entry_points, version="1.0", metadata=None):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(described if metadata is None else metadata)
    (info / "entry_points.txt").write_text(entry_points)
    return info


def found():
    return [
        (each.distribution, each.version, each.name, each.target) for each in installed_sources()
    ]


def test_plugins_come_by_distribution_and_name_and_not_by_folder(site):
    add(site, "zebra", GROUP + "a = zebra_a\n")
    add(site, "Ant", GROUP + "z = ant_z\nb = ant_b:plugin\n")
    add(site, "bee", GROUP + "m = bee_m\n", version="2.5")
    assert found() == [
        ("Ant", "1.0", "b", "ant_b:plugin"),
        ("Ant", "1.0", "z", "ant_z"),
        ("bee", "2.5", "m", "bee_m"),
        ("zebra", "1.0", "a", "zebra_a"),
    ]


def test_of_two_copies_the_first_on_the_path_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    add(tmp_path / "first", "my-plugin", GROUP + "new = mine\n", version="2.0")
    add(tmp_path / "second", "My_Plugin", GROUP + "old = mine\nolder = mine\n", version="1.0")
    assert found() == [("my-plugin", "2.0", "new", "mine")]


def test_damaged_metadata_of_one_distribution_hides_no_other(site, caplog):
    add(site, "good", GROUP + "good = good\n")
    (add(site, "binary", "") / "entry_points.txt").write_bytes(
        b"[flashinfer_bench.plugins]\n\xff=\n"
    )
    add(site, "no-equals", GROUP + "this line has no value\n")
    with caplog.at_level(logging.WARNING):
        names = {row[0] for row in found()}
    assert "good" in names
    assert any("cannot be read" in record.message for record in caplog.records)


def test_core_first_then_installed_then_named(site):
    add(site, "dist", GROUP + "installed = some_module\n")
    modules = ("b_module", "a_module", "some_module", "b_module")
    names = [each.name for each in sources(Settings(modules=modules))]
    assert names == ["core", "installed", "b_module", "a_module"]


# ------------------------------------------------------------------ importing


@pytest.mark.parametrize("target", ["a b", "a:", ":b", "..b"])
def test_a_target_of_another_form_is_broken(target):
    catalog = discover(Settings(no_plugins=True, modules=(target,)))
    reason = next(each.reason for each in catalog.plugins if each.target == target)
    assert reason.startswith("failed to load: ")


# ------------------------------------------------------------------ what is blocked


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Settings(), None),
        (Settings(disabled=("triton",)), "is disabled by FIB_DISABLE_PLUGINS"),
        (Settings(disabled=("FIB_Builder.triton",)), "is disabled by FIB_DISABLE_PLUGINS"),
        (Settings(disabled=("builder-triton",)), None),
        (Settings(no_plugins=True, modules=("m",)), None),
        (
            Settings(no_plugins=True, modules=("m",), disabled=("triton",)),
            "is disabled by FIB_DISABLE_PLUGINS",
        ),
    ],
)
def test_why_a_plugin_is_blocked(settings, reason):
    plugin = PluginStatus(name="triton", distribution="fib-builder-triton", target="m")
    assert settings.why_blocked(plugin) == reason

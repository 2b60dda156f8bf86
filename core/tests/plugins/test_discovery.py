"""Discovery in this process: strictness, warnings, conflicts, and the catalog of the process."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.errors import ConfigError, PluginError
from flashinfer_bench.plugins import (
    Availability,
    PluginStatus,
    Settings,
    TimerSpec,
    default_catalog,
    discover,
    hookimpl,
    reset_default_catalog,
)
from flashinfer_bench.plugins.manager import installed_sources, sources


@pytest.fixture
def plugin(monkeypatch):
    """Make the plugin ``fib_test_plugin``, a module that registers timers of these names."""
    module = ModuleType("fib_test_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")

    def make(*names, **more):
        common = {"devices": ("cpu",), "factory": "m:T", **more}
        records = [TimerSpec(name=name, **common) for name in names]
        module.fib_register_timers = hookimpl(lambda: records)
        return module

    return make


def state_of(catalog):
    return next(each for each in catalog.plugins if each.name == "fib_test_plugin")


def test_a_name_of_core_is_no_exception(plugin, monkeypatch):
    plugin("cpu")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_plugin")
    catalog = discover()
    core = catalog.plugins[0]
    assert state_of(catalog).state == core.state == "broken"
    assert catalog.timers == ()
    assert ("timer", "cpu") not in core.records
    assert ("executor", "fork") in core.records


def test_records_that_name_one_probe_share_its_answer(plugin):
    calls = []

    def check():
        calls.append(1)
        return Availability(False, f"call {len(calls)}")

    plugin("one", "two", probe="fib_test_plugin:check").check = check
    catalog = discover(Settings(no_plugins=True, modules=("fib_test_plugin",)))
    for name in ("one", "two", "one"):
        assert catalog.find("timer", name).availability().reason == "call 1"


# ------------------------------------------------------------------ the catalog of the process


def test_resetting_reads_the_environment_anew(plugin, monkeypatch):
    plugin("late")
    first = default_catalog()
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_plugin")
    assert default_catalog() is first
    reset_default_catalog()
    assert default_catalog().find("timer", "late")


def test_threads_get_the_same_catalog(monkeypatch):
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    assert len({id(catalog) for catalog in at_once(6, default_catalog)}) == 1


def test_a_plugin_that_asks_for_the_catalog_while_being_loaded_is_broken(plugin, monkeypatch):
    plugin().fib_register_timers = hookimpl(lambda: default_catalog().timers)
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_plugin")
    catalog = default_catalog()
    told = "default_catalog() was called by a plugin that is still being loaded"
    assert told in state_of(catalog).reason
    assert default_catalog() is catalog


def test_a_failed_discovery_is_tried_again(monkeypatch):
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_missing")
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(PluginError):
            default_catalog()
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "0")
    assert default_catalog().find("timer", "cpu")


def test_a_variable_that_makes_no_sense_is_an_error_and_no_default(monkeypatch):
    monkeypatch.setenv("FIB_PROBE_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match="FIB_PROBE_TIMEOUT_S"):
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


@pytest.mark.parametrize("target", ["a b", "a:", ":b", "..b"])
def test_a_target_of_another_form_is_broken(target):
    catalog = discover(Settings(no_plugins=True, modules=(target,)))
    reason = next(each.reason for each in catalog.plugins if each.target == target)
    assert reason.startswith("failed to load: ")


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

"""Finding plugins: in which order, from which of several copies, and despite damaged metadata."""

from __future__ import annotations

import logging
import sys

import pytest

from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins import Settings
from flashinfer_bench.plugins.settings import canonical
from flashinfer_bench.plugins.sources import import_plugin, installed_sources, sources

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


def test_no_distributions_no_plugins(site):
    assert found() == []


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


def test_entry_points_of_other_groups_are_not_ours(site):
    add(site, "other", "[console_scripts]\nfib = other:main\n")
    add(site, "near", "[flashinfer_bench.plugins.more]\nx = near\n")
    add(site, "both", "[console_scripts]\nx = both:main\n\n" + GROUP + "both = both\n")
    assert found() == [("both", "1.0", "both", "both")]


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


def test_a_distribution_without_metadata_is_still_named_somehow(site):
    add(site, "nameless", GROUP + "x = nameless\n", metadata="")
    (row,) = installed_sources()
    assert (row.name, row.target) == ("x", "nameless")
    assert isinstance(row.version, str)
    assert row.distribution


def test_core_first_then_installed_then_named(site):
    add(site, "dist", GROUP + "installed = some_module\n")
    names = [each.name for each in sources(Settings(modules=("b_module", "a_module", "b_module")))]
    assert names == ["core", "installed", "b_module", "a_module"]


def test_an_installed_module_that_is_named_too_comes_once(site):
    add(site, "dist", GROUP + "installed = some_module\n")
    found = list(sources(Settings(modules=("some_module",))))
    assert [(each.name, each.named) for each in found] == [("core", False), ("installed", True)]


# ------------------------------------------------------------------ importing


def test_a_target_is_a_module_or_an_object_in_it():
    import json
    import os.path

    assert import_plugin("json") is json
    assert import_plugin("os.path") is os.path
    assert import_plugin("json:JSONDecoder.decode") is json.JSONDecoder.decode


@pytest.mark.parametrize("target", ["", "a-b", "a b", "a:", ":b", "a:b:c", "a..b", "a [extra]"])
def test_a_target_of_another_form_is_refused(target):
    with pytest.raises(PluginLoadError, match=r"is not of the form 'package\.module:object'"):
        import_plugin(target)


# ------------------------------------------------------------------ what is blocked


@pytest.mark.parametrize(
    ("settings", "named", "reason"),
    [
        (Settings(), False, None),
        (Settings(disabled=("other",)), False, None),
        (Settings(disabled=("triton",)), False, "is disabled by FIB_DISABLE_PLUGINS"),
        (Settings(disabled=("FIB_Builder.triton",)), False, "is disabled by FIB_DISABLE_PLUGINS"),
        (Settings(disabled=("builder-triton",)), False, None),
        (Settings(no_plugins=True), False, "is not loaded because FIB_NO_PLUGINS is set"),
        (Settings(no_plugins=True), True, None),
        (
            Settings(no_plugins=True, disabled=("triton",)),
            True,
            "is disabled by FIB_DISABLE_PLUGINS",
        ),
    ],
)
def test_why_a_plugin_is_blocked(settings, named, reason):
    assert settings.why_blocked("triton", "fib-builder-triton", named=named) == reason


def test_an_empty_name_disables_no_nameless_distribution():
    assert Settings(disabled=("",)).why_blocked("module", "", named=True) is None


@pytest.mark.parametrize("name", ["A.b", "a_b", "a--b", "a-._b", "A-B"])
def test_spellings_of_a_distribution_are_one(name):
    assert canonical(name) == "a-b"


def test_settings_come_from_the_environment(monkeypatch):
    assert Settings.from_env() == Settings()
    monkeypatch.setenv("FIB_NO_PLUGINS", "yes")
    monkeypatch.setenv("FIB_DISABLE_PLUGINS", " a, b,,")
    monkeypatch.setenv("FIB_PLUGINS", "m.n,o")
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
    monkeypatch.setenv("FIB_PROBE_TIMEOUT_S", "2.5")
    assert Settings.from_env() == Settings(
        no_plugins=True,
        disabled=("a", "b"),
        modules=("m.n", "o"),
        strict=True,
        probe_timeout_s=2.5,
    )

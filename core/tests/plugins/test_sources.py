"""Finding plugins: in which order, from which of several copies, and despite damaged metadata."""

from __future__ import annotations

import logging
import sys

import pytest

from flashinfer_bench.plugins import PluginStatus, Settings, discover
from flashinfer_bench.plugins.manager import installed_sources, sources

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

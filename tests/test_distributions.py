"""All distributions move together: one version, one licence, dependencies that fit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="tomllib comes with Python 3.11")

ROOT = Path(__file__).parent.parent
PROJECTS = sorted(
    [
        ROOT / "pyproject.toml",
        ROOT / "core" / "pyproject.toml",
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
)
PLUGINS = [path for path in PROJECTS if path.parent.parent.name == "plugins"]
# Plugins and their tests import them; and what they register all the same.
LIBRARIES = {"native_toolkit": ["fib_build_cache"], "testing": ["fib_plugin_new"]}


def load(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


VERSION = load(ROOT / "pyproject.toml")["version"]


def ident(path: Path) -> str:
    return path.parent.name if path.parent != ROOT else "meta"


@pytest.mark.parametrize("path", PROJECTS, ids=ident)
def test_versions_are_equal(path: Path) -> None:
    assert load(path)["version"] == VERSION


def test_the_package_knows_its_version() -> None:
    import flashinfer_bench

    assert flashinfer_bench.__version__ == VERSION


def test_the_changelog_has_an_entry_for_it() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(VERSION)}\b", changelog, re.MULTILINE)


@pytest.mark.parametrize("path", PROJECTS, ids=ident)
def test_each_carries_the_licence(path: Path) -> None:
    project = load(path)
    assert project["license"] == "Apache-2.0"
    assert (path.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (path.parent / project["readme"]).stat().st_size > 100


@pytest.mark.parametrize("path", PROJECTS, ids=ident)
def test_each_supports_the_same_pythons(path: Path) -> None:
    project = load(path)
    assert project["requires-python"] == ">=3.10"


def test_the_meta_distribution_pins_its_parts() -> None:
    project = load(ROOT / "pyproject.toml")
    for requirement in project["dependencies"]:
        assert requirement.endswith(f"=={VERSION}"), requirement


def test_every_distribution_can_be_had_through_the_meta_distribution() -> None:
    project = load(ROOT / "pyproject.toml")
    extras = project["optional-dependencies"].values()
    named = " ".join([*project["dependencies"], *(line for extra in extras for line in extra)])
    # A library comes with the plugins that are built on it.
    needed = " ".join(line for path in PLUGINS for line in load(path)["dependencies"])
    for path in PLUGINS:
        library = path.parent.name in LIBRARIES
        assert re.search(rf"\b{load(path)['name']}\b", needed + named if library else named), path


@pytest.mark.parametrize("path", PLUGINS, ids=ident)
def test_a_plugin_needs_core_of_its_own_minor_version(path: Path) -> None:
    major, minor, _ = VERSION.split(".")
    assert f"flashinfer-bench-core~={major}.{minor}.0" in load(path)["dependencies"]


@pytest.mark.parametrize("path", PLUGINS, ids=ident)
def test_a_plugin_registers_through_an_entry_point(path: Path) -> None:
    points = load(path).get("entry-points", {}).get("flashinfer_bench.plugins", {})
    package = load(path)["name"].replace("-", "_")
    assert list(points.values()) == LIBRARIES.get(path.parent.name, [package])


@pytest.mark.parametrize("path", [p for p in PROJECTS if p.parent != ROOT], ids=ident)
def test_each_package_is_typed(path: Path) -> None:
    packages = [p for p in (path.parent / "src").iterdir() if (p / "__init__.py").exists()]
    assert packages
    assert all((package / "py.typed").exists() for package in packages)


def test_every_constraint_names_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(
        re.match(r"^[A-Za-z0-9_.-]+==[^=\s;]+(; python_version (>=|<) \"3\.\d+\")?$", pin)
        for pin in pins
    )
    assert "torch==2.13.0" in pins

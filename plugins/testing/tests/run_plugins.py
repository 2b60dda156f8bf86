"""The plugin suite on every plugin of ``broken_plugins``; run by ``test_plugin_suite``."""

import tempfile
from pathlib import Path

import broken_plugins
import pytest
from suites import suites_of

from fib_testing import PluginCase, PluginConformance

# The current folder is the run's own; see the conftest.
FOLDER = Path(tempfile.mkdtemp(dir=Path.cwd()))
broken_plugins.write(FOLDER)

CASES = {
    name.removeprefix("toy_"): PluginCase(plugin=name, installed=False)
    for name in broken_plugins.MODULES
    if name not in ("toy_commands", "toy_factories")
}
CASES["good"] = "toy-good"
CASES |= {name: f"toy_{name}" for name in ("absent", "twice", "outdated")}


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Have the plugins here for these tests only: others would find plugins that conflict."""
    monkeypatch.syspath_prepend(str(FOLDER))


globals().update(suites_of({f"_{name}": (PluginConformance, case) for name, case in CASES.items()}))


class Test_no_case(PluginConformance):
    """Somebody forgot the fixture."""

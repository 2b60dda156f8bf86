"""Fixture distributions, installed into a folder that is thrown away.

Each plugin is found by its metadata, imported by its entry point, and observed from a process of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench import env
from flashinfer_bench.plugins import reset_default_catalog

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "from flashinfer_bench.cli.main import main; main()"
IMPL = "class Impl:\n    pass\n"
HOOK = "@hookimpl\ndef fib_register_builders():\n"


def install(site: Path, name: str, module: str, impl: str = IMPL, requires: str = "") -> None:
    """Leave what pip leaves of a wheel with a plugin `name`, as far as anybody reads it."""
    info = site / f"fib_fixture_{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    described = f"Metadata-Version: 2.1\nName: fib-fixture-{name}\nVersion: 1.0\n"
    (info / "METADATA").write_text(described + requires)
    package = f"fixture_{name.replace('-', '_')}"
    (info / "entry_points.txt").write_text(f"[flashinfer_bench.plugins]\n{name} = {package}\n")
    if module:
        source = f"from flashinfer_bench.plugins import *\n{module}"
        (site / f"{package}.py").write_text(source)
        (site / f"{package}_impl.py").write_text(dedent(impl))


def builder(name: str, plugin: str, *, factory: str = "Impl", probe: str = "") -> str:
    module = f"fixture_{plugin.replace('-', '_')}_impl"
    more = f", probe='{module}:{probe}'" if probe else ""
    return (
        f"    yield BuilderSpec(name='{name}', handles=(('{name}lang', None),), "
        f"factory='{module}:{factory}', summary='Builds {name}'{more})\n"
    )


SLOW = """
import time
from flashinfer_bench.plugins import Availability

def two_seconds():
    time.sleep(2)
    return Availability(True)

def forever():
    time.sleep(100_000)
"""
CHATTY = """
from flashinfer_bench.plugins import Availability

class Impl: ...

def check():
    print("chatter in a probe")
    return Availability(False, "no CUDA device", "install the driver")
"""
MOJO = "def helper():\n    import mojo_runtime\n\nhelper()\n"
RAISES = '@hookimpl\ndef fib_register_timers():\n    raise ValueError("no clock\\nto be found")\n'


def install_all(site: Path) -> None:
    elsewhere = "unrelated>=99", "flashinfer-bench-core>=99; extra == 'later'"
    required = "".join(f"Requires-Dist: {each}\n" for each in elsewhere)
    install(site, "good", HOOK + builder("good", "good"), requires=required)
    required = "Requires-Dist: flashinfer-bench-core ~~ 3\n"
    install(site, "unread", HOOK + builder("unread", "unread"), requires=required)
    install(site, "mojo", MOJO)
    install(site, "raises", f"{HOOK}{builder('survivor', 'raises')}\n{RAISES}")
    for twin in ("twin-a", "twin-b"):
        install(site, twin, HOOK + builder("twin", twin) + builder(f"{twin}-own", twin))
    slow = builder("slow", "slow", probe="two_seconds") + builder("stuck", "slow", probe="forever")
    install(site, "slow", HOOK + slow, SLOW)
    chatter = f'print("chatter at import")\n{HOOK}    print("chatter in a hook")\n'
    install(site, "chatty", chatter + builder("chatty", "chatty", probe="check"), CHATTY)
    install(site, "typo", HOOK + builder("typo", "typo", factory="Misnamed"))
    required = "Requires-Dist: flashinfer-bench-core~=99.0\n"
    install(site, "future", HOOK + builder("future", "future"), requires=required)
    install(site, "missing", "")
    install(site, "unwanted", HOOK + builder("unwanted", "unwanted"))


@dataclass
class Environment:
    """A folder with installed distributions, and processes that have it on their path."""

    site: Path
    variables: dict[str, str] = field(default_factory=dict)

    def python(self, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run `code`; the time limit is there to end a test that hangs, not to measure."""
        names = {variable.name for variable in env.VARIABLES}
        inherited = {name: value for name, value in os.environ.items() if name not in names}
        return subprocess.run(
            [sys.executable, "-c", dedent(code), *arguments],
            env={**inherited, "PYTHONPATH": str(self.site), **self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=280,
        )

    def fib(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        """Run the command line."""
        return self.python(MAIN, *arguments, **variables)

    def fib_json(self, *arguments: str, **variables: str) -> dict:
        """Run the command line and read what it writes."""
        done = self.fib(*arguments, "--json", **variables)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Every fixture distribution, good and bad, side by side.

    One of them is disabled. Where the plugin with the slow probes is not the subject, it is too,
    and the other probes have all the time that a busy machine may need.
    """
    site = tmp_path_factory.mktemp("environment")
    install_all(site)
    # What the core of these tests is run with is a library path of its own.
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(site), inherited]))
    variables = {"FIB_DISABLE_PLUGINS": "unwanted,slow", "FIB_PROBE_TIMEOUT_S": "60"}
    return Environment(site, {**variables, "PYTHONPATH": path})


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Start each test without settings and without a catalog, whatever the run was started with."""
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    reset_default_catalog()
    yield
    reset_default_catalog()

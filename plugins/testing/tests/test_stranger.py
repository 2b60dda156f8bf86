"""A stranger's project: a plugin and a test file, with pytest's own settings and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PLUGIN = """
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.plugins import TimerSpec, hookimpl

@hookimpl
def fib_register_timers():
    for name in ("slow", "fast"):
        yield TimerSpec(
            name=f"{name}_stranger",
            devices=["cpu"],
            factory=f"stranger_timers:{name.title()}",
            summary=f"The {name} one",
        )
"""

TIMERS = """
from flashinfer_bench.bench.timing.wall import WallClockTimer

class Slow(WallClockTimer):
    name = "slow_stranger"

class Fast(WallClockTimer):
    name = "fast"
"""

TESTS = """
import pytest
import stranger
from fib_testing import PluginConformance, TimerCase, TimerConformance

class TestPlugin(PluginConformance):
    @pytest.fixture
    def case(self):
        return "stranger"

class TestTimers(TimerConformance):
    "Two of them, one after the other."

    @pytest.fixture(params=stranger.fib_register_timers(), ids=lambda record: record.name)
    def case(self, request):
        return TimerCase(record=request.param)

    def test_one_of_its_own(self, kit):
        assert kit.timer.version == "3"
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What pytest prints in the project."""
    folder = tmp_path_factory.mktemp("project")
    files = {
        "stranger": PLUGIN,
        "stranger_timers": TIMERS,
        "test_stranger": TESTS,
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    info = folder / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n"
        "Requires-Dist: flashinfer-bench-core>=0.2\n"
    )
    (info / "entry_points.txt").write_text("[flashinfer_bench.plugins]\nstranger = stranger\n")
    env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    path = os.pathsep.join(filter(None, [str(folder), env.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA"],
        env={**env, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_it_runs_and_finds_the_one_mistake(told):
    failed = [line.split(" - ")[0] for line in told.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED test_stranger.py::TestTimers::test_it_has_name_and_version[fast_stranger]"
    ]
    assert "its name is 'fast', and the record's 'fast_stranger'" in told
    assert "PASSED test_stranger.py::TestTimers::test_one_of_its_own[slow_stranger]" in told
    assert "PASSED test_stranger.py::TestPlugin::test_the_entry_point_is_installed" in told


def test_the_failure_is_short(told):
    section = told.partition("TestTimers.test_it_has_name_and_version[fast_stranger] _")[2]
    lines = re.split(r"\n[_=]+ ", section)[0].splitlines()[1:]
    assert 3 <= len(lines) < 12, section
    assert "Traceback" not in "\n".join(lines)

"""A stranger's project: a plugin and a test file, with pytest's own settings and nothing else."""

from __future__ import annotations

import os
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
from flashinfer_bench.testing import PluginConformance, TimerCase, TimerConformance

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

class TestSome(TimerConformance):
    "Leaves one out, with a reason, as one does in pytest."

    @pytest.fixture
    def case(self):
        return TimerCase(record="stranger_timers:Slow")

    @pytest.mark.skip(reason="this clock is for people with time")
    def test_more_work_takes_longer(self):
        pass
"""

WITHOUT_CORE = """
from flashinfer_bench.testing import PluginConformance

class TestForgotten(PluginConformance):
    pass
"""


@pytest.fixture
def project(tmp_path):
    files = {"stranger": PLUGIN, "stranger_timers": TIMERS, "test_stranger": TESTS}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n"
        "Requires-Dist: flashinfer-bench-core>=0.2\n"
    )
    (info / "entry_points.txt").write_text("[flashinfer_bench.plugins]\nstranger = stranger\n")
    return tmp_path


def run_pytest(folder, *arguments):
    env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        env={**env, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_it_runs_and_finds_the_one_mistake(project):
    told = run_pytest(project)
    failed = [line for line in told.splitlines() if line.startswith("FAILED")]
    assert [line.split(" - ")[0] for line in failed] == [
        "FAILED test_stranger.py::TestTimers::test_it_has_name_and_version[fast_stranger]"
    ]
    assert "its name is 'fast', and the record's 'fast_stranger'" in told
    assert "why it matters: a trace names a timer that nobody can find" in told
    assert "to do: use one name" in told
    assert "PASSED test_stranger.py::TestTimers::test_one_of_its_own[slow_stranger]" in told
    assert "PASSED test_stranger.py::TestPlugin::test_the_entry_point_is_installed" in told
    assert "this clock is for people with time" in told
    assert "ERROR" not in told


def test_the_failure_is_short(project):
    told = run_pytest(project, "-k", "TestTimers and name_and_version and fast")
    section = told.partition("= FAILURES =")[2].partition("= PASSES")[0]
    lines = [line for line in section.splitlines() if line.strip("_= ")]
    assert len(lines) < 12, section
    assert "Traceback" not in section


def test_a_forgotten_case_is_explained(project):
    (project / "test_forgotten.py").write_text(WITHOUT_CORE)
    told = run_pytest(project, "test_forgotten.py", "-k", "loads")
    assert "TestForgotten has no fixture 'case' that returns a PluginCase, but none" in told
    assert "to do: define a fixture in the class: def case(self): return PluginCase(" in told

"""The parts of the kit by themselves."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import flashinfer_bench.testing as kit
from flashinfer_bench.testing.watch import (
    Watcher,
    changes,
    files_below,
    is_compiler_run,
    process_state,
)


def run(code, *arguments, **env):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


class TestNames:
    def test_all_names_are_there(self):
        assert {
            "AdapterConformance",
            "BuilderConformance",
            "EvaluatorConformance",
            "KeyBuilderConformance",
            "PluginConformance",
            "TimerConformance",
        } <= set(kit.__all__)
        assert dir(kit) == sorted(kit.__all__)
        for name in kit.__all__:
            assert getattr(kit, name).__doc__

    def test_other_names_are_an_attribute_error(self):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            kit.nothing  # noqa: B018 - looked up for what it raises

    def test_suites_are_not_collected_by_themselves(self):
        assert not [name for name in kit.__all__ if name.startswith("Test")]

    def test_looking_at_the_package_imports_neither_pytest_nor_torch(self):
        code = (
            "import sys, flashinfer_bench.testing as kit\n"
            "kit.sample_definition, dir(kit)\n"
            "print(sorted({'pytest', 'torch', 'numpy'} & set(sys.modules)))\n"
        )
        assert run(code).stdout == "[]\n"

    def test_every_name_can_be_had_without_torch(self):
        code = (
            "import sys\nsys.modules['torch'] = None\n"
            "import flashinfer_bench.testing as kit\n"
            "print(len([getattr(kit, name) for name in kit.__all__]))\n"
        )
        assert run(code).stdout == f"{len(kit.__all__)}\n"

    def test_without_pytest_a_suite_names_the_extra(self):
        code = (
            "import sys\nsys.modules['pytest'] = None\n"
            "from flashinfer_bench.testing import TimerConformance\n"
        )
        told = run(code).stderr
        assert "ImportError: TimerConformance needs pytest: pip install" in told
        assert "flashinfer-bench-core[testing]" in told

    def test_the_extra_brings_pytest(self):
        project = Path(__file__).parents[2] / "pyproject.toml"
        assert '\ntesting = ["pytest>=' in project.read_text(encoding="utf-8")

    def test_every_test_of_every_suite_says_what_it_checks(self):
        for name in kit.__all__:
            suite = getattr(kit, name)
            tests = [test for test in dir(suite) if test.startswith("test_")]
            assert bool(tests) == name.endswith("Conformance")
            assert all(len(getattr(suite, test).__doc__.splitlines()[0]) > 20 for test in tests)


class TestSamples:
    def test_the_definition_and_a_solution_of_it(self):
        definition = kit.sample_definition()
        solution = kit.make_solution(
            definition,
            {"a.cu": "x", "b.h": "y"},
            "a.cu::run",
            language="cuda",
            binding="torch",
            destination_passing_style=False,
        )
        assert solution.definition == definition.name
        assert solution.spec.binding == "torch"
        assert solution.spec.destination_passing_style is False
        assert [source.path for source in solution.sources] == ["a.cu", "b.h"]
        assert "destination_passing_style" not in kit.make_solution(
            definition, {"a.cu": "x"}, "a.cu::run", language="cuda"
        ).spec.model_dump(mode="json")


class TestCompilerRuns:
    @pytest.mark.parametrize(
        "command",
        [
            ["g++", "-O2", "-c", "kernel.cpp", "-o", "kernel.o"],
            ["/usr/bin/c++", "-shared", "a.o"],
            ["nvcc", "-o", "kernel.so", "kernel.cu"],
            ["/opt/bin/ninja", "-C", "build"],
            ["ninja"],
            ["/usr/bin/ninja", "-j", "2", "-l", "4", "-v"],
            ["cmake", "--build", "."],
            [sys.executable, "-m", "ninja"],
            ["python3.11", "-m", "cmake"],
        ],
    )
    def test_something_is_built(self, command):
        assert is_compiler_run(command)

    @pytest.mark.parametrize(
        "command",
        [
            [],
            ["g++", "--version"],
            ["g++", "-dumpmachine"],
            ["nvcc", "--version"],
            ["ninja", "--version"],
            ["ninja", "-t", "deps"],
            ["make", "-v"],
            ["ldconfig", "-p"],
            ["uname", "-m"],
            [sys.executable, "-c", "print()"],
            ["nvidia-smi", "--query-gpu=name"],
        ],
    )
    def test_something_is_asked(self, command):
        assert not is_compiler_run(command)


class TestProcessState:
    def changed(self, change, undo):
        before = process_state()
        try:
            change()
            return changes(before, process_state())
        finally:
            undo()

    def test_nothing_changes_by_itself(self):
        assert changes(process_state(), process_state()) == {}

    def test_a_variable(self):
        found = self.changed(
            lambda: os.environ.update(TOY="1"), lambda: os.environ.pop("TOY", None)
        )
        assert found == {"env:TOY": "not set -> 1"}

    def test_the_working_directory(self, tmp_path):
        here = Path.cwd()
        found = self.changed(lambda: os.chdir(tmp_path), lambda: os.chdir(here))
        assert found == {"the working directory": f"{here} -> {tmp_path}"}

    def test_the_import_path(self):
        found = self.changed(lambda: sys.path.append("toys"), sys.path.pop)
        assert list(found) == ["sys.path"]

    def test_the_umask(self):
        before = os.umask(0o022)
        os.umask(before)
        found = self.changed(lambda: os.umask(before ^ 0o070), lambda: os.umask(before))
        assert list(found) == ["the umask"]

    @pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signal handlers belong to the main thread",
    )
    def test_a_signal_handler(self):
        before = signal.getsignal(signal.SIGUSR2)
        found = self.changed(
            lambda: signal.signal(signal.SIGUSR2, print),
            lambda: signal.signal(signal.SIGUSR2, before),
        )
        assert list(found) == ["signal:SIGUSR2"]

    def test_logging_and_warnings(self):
        handler, root = logging.NullHandler(), logging.getLogger()
        found = self.changed(lambda: root.addHandler(handler), lambda: root.removeHandler(handler))
        assert list(found) == ["the handlers of the root logger"]
        with warnings.catch_warnings():
            before = process_state()
            warnings.simplefilter("ignore", ResourceWarning)
            assert list(changes(before, process_state())) == ["the warning filters"]

    @pytest.mark.torch
    def test_settings_of_torch(self):
        import torch

        state = torch.get_rng_state()
        found = self.changed(lambda: torch.manual_seed(77), lambda: torch.set_rng_state(state))
        assert list(found) == ["torch's random state"]
        found = self.changed(
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
        )
        assert list(found) == ["torch's default dtype"]


WATCHED = """
import os, subprocess, sys
from pathlib import Path
from flashinfer_bench.testing.watch import Watcher
cache, elsewhere = Path(sys.argv[1]), Path(sys.argv[2])
watcher = Watcher(cache, frozenset({"kernel.cu"}))
watcher.start()
(cache / "kernel.cu").write_text("x")
(elsewhere / "notes.txt").write_text("x")
(elsewhere / "kernel.cu").write_text("x")
(elsewhere / "kernel.cu").read_text()
(cache / "link").symlink_to(elsewhere)
os.close(os.open(cache / "link" / "kernel.cu", os.O_WRONLY))
open(1, "w", closefd=False).close()
subprocess.run(["true", "-c", "a"], check=True)
subprocess.run("true b", shell=True, check=True)
os.system("true c")
os.posix_spawnp("true", ["true", "d"], os.environ)
os.waitpid(-1, 0)
commands = watcher.take_commands()
print([Path(path).parent.name for path in watcher.stray_sources])
print([command[-1] for command in commands], watcher.take_commands())
"""


class TestWatcher:
    def test_it_sees_programs_and_stray_sources(self, tmp_path):
        (tmp_path / "cache").mkdir()
        (tmp_path / "other").mkdir()
        done = run(WATCHED, str(tmp_path / "cache"), str(tmp_path / "other"))
        stray, commands = done.stdout.splitlines()
        assert stray == "['other', 'link']", done.stderr
        assert commands == "['a', 'true b', 'c', 'd'] []"

    @pytest.mark.parametrize(("kill_at", "told"), [(0, ["1", "2", "3"]), (1, []), (2, ["1", "2"])])
    def test_it_kills_before_a_compiler_starts(self, tmp_path, kill_at, told):
        code = (
            "import os, subprocess, sys\nfrom pathlib import Path\n"
            "from flashinfer_bench.testing.watch import Watcher\nos.setsid()\n"
            "Watcher(Path(sys.argv[1]), frozenset(), kill_at=int(sys.argv[2])).start()\n"
            "for text, flag in ('1', '-c'), ('2', '--version'), ('3', '-c'):\n"
            "    subprocess.run(['sh', '-c', 'echo ' + text] if flag == '-c' else ['echo', text])\n"
        )
        done = run(code, str(tmp_path), str(kill_at))
        assert done.stdout.split() == told
        assert done.returncode == (-9 if kill_at else 0)

    def test_it_starts_with_nothing(self, tmp_path):
        watcher = Watcher(tmp_path, frozenset())
        assert (watcher.commands, watcher.stray_sources) == ([], [])

    def test_files_below(self, tmp_path):
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "c").touch()
        (tmp_path / "d").touch()
        assert files_below(tmp_path) == ["a/b/c", "d"]

"""Locking clocks, and above all that it is undone: with a stand-in for the GPU only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

from flashinfer_bench.bench.watch import ClockRequest, locked_clocks
from flashinfer_bench.bench.watch import lock as lock_module
from flashinfer_bench.bench.watch.leftover import Leftover
from flashinfer_bench.bench.watch.processes import belongs_to, exists
from flashinfer_bench.errors import ConfigError

UUID = "8f14e45f-ceea-467f-a8b1-9f2d7c3e5a01"
BOTH = ClockRequest(1500, 1593)
SET_SM, SET_MEMORY = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetMemoryLockedClocks"
RESET_SM, RESET_MEMORY = "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks"


def locked(gpu):
    return gpu.now("locked_sm"), gpu.now("locked_memory")


def until(condition, *, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)


def guardians():
    """Return the guardians that this process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and belongs_to(int(folder.name), os.getpid()):
            with suppress(OSError):
                if "watch.guardian" in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
    return found


class TestUsual:
    def test_for_as_long_as_the_body_lasts(self, gpu):
        with locked_clocks("cuda:0", BOTH) as report:
            assert locked(gpu) == (1500, 1593)
            assert (report.locked, report.undone, report.problem) == (True, False, None)
        assert locked(gpu) == (None, None)
        assert (report.locked, report.undone, report.problem) == (True, True, None)
        assert gpu.now("users") == 0

    def test_is_reported(self, gpu):
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1500)) as report:
            pass
        assert report.facts() == {
            "locked": True,
            "sm_mhz": 1500,
            "sm_mhz_before": 1980,
            "memory_mhz_before": 2619,
        }
        json.dumps(report.facts())

    def test_only_what_was_asked_for(self, gpu):
        with locked_clocks("cuda:0", ClockRequest(memory_mhz=1593)):
            assert locked(gpu) == (None, 1593)
        assert gpu.calls(SET_SM) == gpu.calls(RESET_SM) == []

    def test_off_by_default(self, gpu):
        with locked_clocks("cuda:0", None) as report:
            assert gpu.now("calls") is None
        assert report.facts() == {}

    def test_says_nothing_on_the_way(self, gpu, capfd):
        with locked_clocks("cuda:0", BOTH):
            pass
        assert capfd.readouterr() == ("", "")

    def test_twice_in_a_row(self, gpu):
        for _ in range(2):
            with locked_clocks("cuda:0", BOTH) as report:
                assert report.locked
        assert len(gpu.calls(RESET_SM)) == 2

    def test_leaves_nothing_behind(self, gpu):
        before = len([*Path("/proc/self/fd").iterdir()])
        with locked_clocks("cuda:0", BOTH):
            assert len(guardians()) == 1
        assert len([*Path("/proc/self/fd").iterdir()]) == before
        assert guardians() == []


class TestRefused:
    """Nothing is raised, and nothing is changed."""

    def refused(self, gpu, request, caplog):
        with locked_clocks("cuda:0", request) as report:
            assert not report.locked
        assert locked(gpu) in ((None, None), (gpu.now("locked_sm"), None))
        assert report.undone
        assert "are not locked" in caplog.text
        assert report.facts()["problem"] == report.problem
        assert guardians() == []
        return report.problem

    def test_others_use_the_device(self, gpu, caplog):
        gpu.set(pids=[1])
        assert "1 other processes use GPU-8f14" in self.refused(gpu, BOTH, caplog)
        assert gpu.calls(SET_SM) == []

    def test_processes_that_cannot_be_seen(self, gpu, caplog):
        gpu.set(pids=[2**22 + 7])
        assert "1 other processes" in self.refused(gpu, BOTH, caplog)

    def test_own_processes_are_no_others(self, gpu):
        gpu.set(pids=[os.getpid()])
        with locked_clocks("cuda:0", BOTH) as report:
            assert report.locked

    def test_a_divided_device(self, gpu, caplog):
        gpu.set(mig=[1, 1])
        assert "divided (MIG)" in self.refused(gpu, BOTH, caplog)

    def test_clocks_that_somebody_has_set(self, gpu, caplog):
        gpu.set(reasons=0x2)
        assert "set by somebody already" in self.refused(gpu, BOTH, caplog)
        assert gpu.calls(RESET_SM) == []

    def test_a_clock_that_it_has_not(self, gpu, caplog):
        problem = self.refused(gpu, ClockRequest(sm_mhz=1502), caplog)
        assert "no SM clock of 1502 MHz; there are 110 from 345 to 1980 MHz" in problem
        assert "nearest is 1500" in problem

    def test_without_the_right(self, gpu, caplog):
        gpu.fail(SET_SM, code=4)
        assert SET_SM in self.refused(gpu, BOTH, caplog)
        assert "takes root" in caplog.text
        assert len(gpu.calls(RESET_MEMORY)) == 1  # the memory's clock had been set already

    def test_no_bindings(self, gpu, caplog, monkeypatch, tmp_path):
        (tmp_path / "none").mkdir()
        (tmp_path / "none/pynvml.py").write_text("raise ImportError('none')")
        monkeypatch.syspath_prepend(str(tmp_path / "none"))
        assert "not installed" in self.refused(gpu, BOTH, caplog)

    def test_the_cpu(self, gpu, caplog):
        with locked_clocks("cpu", BOTH) as report:
            assert not report.locked
        assert "no UUID of cpu" in report.problem

    def test_a_second_time_at_once(self, gpu, caplog):
        with locked_clocks("cuda:0", BOTH), locked_clocks("cuda:0", ClockRequest(1200)) as second:
            assert not second.locked
            assert "another process has locked" in second.problem
            assert locked(gpu) == (1500, 1593)
        assert locked(gpu) == (None, None)

    def test_a_guardian_that_cannot_be_started(self, gpu, caplog, monkeypatch):
        monkeypatch.setattr(lock_module.sys, "executable", "/no/such/python")
        assert "FileNotFoundError" in self.refused(gpu, BOTH, caplog)

    def test_a_guardian_that_ends_at_once(self, gpu, caplog, monkeypatch):
        monkeypatch.setattr(lock_module, "_GUARDIAN", "no_such_module")
        assert "gave no answer" in self.refused(gpu, BOTH, caplog)

    def test_a_driver_that_takes_for_ever(self, gpu, caplog, monkeypatch):
        """The clocks are undone as soon as the driver has set them."""
        monkeypatch.setattr(lock_module, "_ANSWER_S", 0.5)
        monkeypatch.setattr(lock_module, "_LEAVE_S", 20.0)
        gpu.set(slow={SET_SM: 4.0})
        assert "gave no answer" in self.refused(gpu, BOTH, caplog)
        assert len(gpu.calls(RESET_SM)) == 1


class TestRequests:
    @pytest.mark.parametrize(
        "values", [{}, {"sm_mhz": 0}, {"sm_mhz": -5}, {"memory_mhz": 1.5}, {"sm_mhz": True}]
    )
    def test_that_are_none(self, values):
        with pytest.raises(ConfigError, match="locked clocks: "):
            ClockRequest(**values)


class TestUndoneInThisProcess:
    def test_after_an_exception(self, gpu):
        with pytest.raises(ZeroDivisionError), locked_clocks("cuda:0", BOTH):
            1 / 0  # noqa: B018
        assert locked(gpu) == (None, None)

    def test_after_ctrl_c(self, gpu):
        with pytest.raises(KeyboardInterrupt), locked_clocks("cuda:0", BOTH):
            raise KeyboardInterrupt
        assert locked(gpu) == (None, None)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_after_the_guardian_was_killed(self, gpu, number):
        with locked_clocks("cuda:0", BOTH) as report:
            (guardian,) = guardians()
            os.kill(guardian, number)
            time.sleep(0.2)
        assert locked(gpu) == (None, None)
        assert report.undone
        assert gpu.now("users") == (1 if number == signal.SIGKILL else 0)

    def test_ctrl_c_does_not_reach_the_guardian(self, gpu):
        with locked_clocks("cuda:0", BOTH):
            assert [os.getsid(pid) == pid for pid in guardians()] == [True]

    def test_a_driver_that_fails_once(self, gpu):
        with locked_clocks("cuda:0", BOTH) as report:
            gpu.fail(RESET_SM, code=999)
            (guardian,) = guardians()
            os.kill(guardian, signal.SIGTERM)
            until(lambda: len(gpu.calls(RESET_SM)) >= 2)
            gpu.set(fails={})
        assert locked(gpu) == (None, None)
        assert report.undone

    def test_if_it_cannot_be_undone_it_says_so_and_how_to(self, gpu, caplog):
        with locked_clocks("cuda:0", BOTH) as report:
            gpu.fail(RESET_SM, code=999)
        assert not report.undone
        assert locked(gpu) == (1500, None)
        assert "nvidia-smi -i GPU-8f14e45f" in caplog.text
        assert "--reset-gpu-clocks" in caplog.text


HOLDER = """
    import os, sys, time
    from flashinfer_bench.bench.watch import ClockRequest, locked_clocks
    with locked_clocks("cuda:0", ClockRequest(1500, 1593)) as report:
        assert report.locked, report.problem
        HOW
"""


def holder(how, **options):
    """Start a process that locks the clocks, and then does something."""
    code = dedent(HOLDER).replace("HOW", how)
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


class TestUndoneAfterACrash:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_of_a_signal(self, gpu, number):
        with holder("print('ready', flush=True); time.sleep(60)") as process:
            assert process.stdout.readline() == "ready\n"
            assert locked(gpu) == (1500, 1593)
            process.send_signal(number)
            process.wait(timeout=30)
        until(lambda: locked(gpu) == (None, None))
        until(lambda: gpu.now("users") == 0)

    def test_of_its_whole_process_group(self, gpu):
        with holder("print('ready', flush=True); time.sleep(60)", start_new_session=True) as held:
            assert held.stdout.readline() == "ready\n"
            os.killpg(held.pid, signal.SIGKILL)
        until(lambda: locked(gpu) == (None, None))

    @pytest.mark.parametrize("how", ["os._exit(3)", "os.abort()", "sys.exit(1)", "1 / 0"])
    def test_of_its_own(self, gpu, how):
        with holder(how, stderr=subprocess.DEVNULL) as process:
            process.wait(timeout=30)
        until(lambda: locked(gpu) == (None, None))

    def test_with_a_child_that_lives_on(self, gpu):
        """A forked child holds the pipe open to which the guardian listens."""
        how = "pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(60)"
        with holder(how) as process:
            child = int(process.stdout.readline())
            try:
                process.kill()
                process.wait(timeout=30)
                until(lambda: locked(gpu) == (None, None))
                assert exists(child)
            finally:
                os.kill(child, signal.SIGKILL)

    def test_in_the_middle_of_locking(self, gpu):
        gpu.set(slow={SET_SM: 1.0})
        with holder("print('late', flush=True)") as process:
            until(lambda: gpu.calls(SET_SM))
            process.kill()
        until(lambda: gpu.calls(RESET_SM))
        until(lambda: locked(gpu) == (None, None))

    def test_somebody_else_may_lock_them_afterwards(self, gpu):
        with holder("print('ready', flush=True); time.sleep(60)") as process:
            assert process.stdout.readline() == "ready\n"
            with locked_clocks("cuda:0", ClockRequest(1200)) as report:
                assert not report.locked
            process.kill()
        until(lambda: gpu.now("users") == 0)

        def works():
            with locked_clocks("cuda:0", ClockRequest(1200)) as again:
                return again.locked

        until(works)


class TestUndoneByTheNext:
    """Where the guardian was killed as well, as when a container is stopped."""

    def crash(self, gpu):
        with holder("print('ready', flush=True); time.sleep(60)") as process:
            assert process.stdout.readline() == "ready\n"
            (guardian,) = guardians()
            os.kill(guardian, signal.SIGKILL)
            process.kill()
            process.wait(timeout=30)
        until(lambda: not exists(guardian))
        assert locked(gpu) == (1500, 1593)

    def test_before_it_sets_its_own(self, gpu):
        self.crash(gpu)
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1200)) as report:
            assert locked(gpu) == (1200, None)
            assert report.facts()["left_over_undone"] is True
        assert locked(gpu) == (None, None)
        assert list((gpu.path.parent / "cache/machine").iterdir()) == []

    def test_even_if_its_own_cannot_be_set(self, gpu):
        self.crash(gpu)
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1201)) as report:
            assert not report.locked
        assert locked(gpu) == (None, None)

    def test_not_while_others_use_the_device(self, gpu):
        self.crash(gpu)
        gpu.set(pids=[1])
        with locked_clocks("cuda:0", BOTH) as report:
            assert not report.locked
        assert locked(gpu) == (1500, 1593)

    def test_if_that_fails_nothing_is_set(self, gpu):
        self.crash(gpu)
        gpu.fail(RESET_SM, code=4)
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1200)) as report:
            assert "killed run has set cannot be undone" in report.problem
        assert gpu.calls(SET_SM) == [[1500, 1500]]

    @pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"boot": "another"}', "\xff"])
    def test_a_note_that_means_nothing(self, gpu, text):
        note = gpu.path.parent / "cache/machine" / f"clocks-{UUID}.json"
        note.parent.mkdir(parents=True)
        note.write_bytes(text.encode("latin-1"))
        assert Leftover(UUID).read() is None
        with locked_clocks("cuda:0", BOTH) as report:
            assert report.locked
            assert "left_over_undone" not in report.facts()
            assert Leftover(UUID).read() == {"sm_mhz": 1500, "memory_mhz": 1593}
        assert not note.exists()

    def test_nowhere_to_write_it(self, gpu, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file/cache"))
        with locked_clocks("cuda:0", BOTH) as report:
            assert report.locked
        assert locked(gpu) == (None, None)

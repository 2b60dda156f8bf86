"""Locking clocks, and above all that it is undone: with a stand-in for the GPU only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from fib_judge.watch import ClockRequest, locked_clocks, restore_clocks
from fib_judge.watch.lock import ClockLease
from flashinfer_bench.errors import CapabilityError, ConfigError

UUID = "8f14e45f-ceea-467f-a8b1-9f2d7c3e5a01"
ASKED = ClockRequest(1500)
SET, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"


def locked(gpu):
    return gpu.now("locked_sm")


def test_for_as_long_as_the_body_lasts(gpu):
    before = len([*Path("/proc/self/fd").iterdir()])
    with locked_clocks("cuda:0", ASKED) as report:
        assert locked(gpu) == 1500
        assert (report.locked, report.undone, report.problem) == (True, False, None)
    assert locked(gpu) is None
    assert (report.locked, report.undone, report.problem) == (True, True, None)
    assert gpu.now("users") == 0
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert report.facts() == {
        "locked": True,
        "sm_mhz": 1500,
        "sm_mhz_before": 1980,
        "memory_mhz_before": 2619,
    }
    json.dumps(report.facts())


class TestRefused:
    """Nothing is raised, and nothing is changed."""

    def refused(self, gpu, request, caplog):
        with locked_clocks("cuda:0", request) as report:
            assert not report.locked
        assert report.undone
        assert "could not lock the clocks" in caplog.text
        assert report.facts()["problem"] == report.problem
        return report.problem

    @pytest.mark.parametrize(
        ("state", "mhz", "told"),
        [
            ({"pids": [1]}, 1500, "1 other processes use GPU-8f14"),
            ({"pids": [2**22 + 7]}, 1500, "1 other processes"),  # one that cannot be seen
            ({"mig": [1, 1]}, 1500, "partitioned (MIG)"),
            ({"reasons": 0x2}, 1500, "set by another program"),
            ({}, 1502, "it has 110 from 345 to 1980 MHz, the nearest is 1500"),
        ],
    )
    def test_what_is_in_the_way(self, gpu, caplog, state, mhz, told):
        gpu.set(**state)
        assert told in self.refused(gpu, ClockRequest(mhz), caplog)
        assert gpu.calls(SET) == gpu.calls(RESET) == []

    def test_without_the_right(self, gpu, caplog):
        gpu.fail(SET, code=4)
        assert SET in self.refused(gpu, ASKED, caplog)
        assert "needs root" in caplog.text

    def test_the_cpu(self, gpu, caplog):
        with locked_clocks("cpu", ASKED) as report:
            assert not report.locked
        assert "cannot find the UUID of cpu" in report.problem

    def test_a_second_time_at_once(self, gpu, caplog):
        with locked_clocks("cuda:0", ASKED), locked_clocks("cuda:0", ClockRequest(1200)) as second:
            assert not second.locked
            assert "another process has locked" in second.problem
            assert locked(gpu) == 1500
        assert locked(gpu) is None


@pytest.mark.parametrize("mhz", [0, -5, 100_001, True])
def test_requests_that_are_none(mhz):
    with pytest.raises(ConfigError, match="locked clocks: "):
        ClockRequest(mhz)


class TestUndone:
    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
    def test_whatever_ends_the_body(self, gpu, error):
        with pytest.raises(error), locked_clocks("cuda:0", ASKED):
            raise error
        assert locked(gpu) is None

    def test_a_driver_that_fails_at_first(self, gpu):
        gpu.set(fails_once={RESET: 999})
        with locked_clocks("cuda:0", ASKED) as report:
            pass
        assert locked(gpu) is None
        assert report.undone
        assert len(gpu.calls(RESET)) == 2

    def test_if_it_cannot_be_undone_it_says_so_and_how_to(self, gpu, caplog):
        with locked_clocks("cuda:0", ASKED) as report:
            gpu.fail(RESET, code=999)
        assert not report.undone
        assert locked(gpu) == 1500
        assert "nvidia-smi -i GPU-8f14e45f" in caplog.text
        assert "--reset-gpu-clocks" in caplog.text
        # … and the next one tries again.
        gpu.set(fails={})
        restore_clocks("cuda:0")
        assert locked(gpu) is None


HOLDER = """
    import os, sys, time
    from fib_judge.watch import ClockRequest, locked_clocks
    holding = locked_clocks("cuda:0", ClockRequest(1500))
    report = holding.__enter__()
    assert report.locked, report.problem
    print("ready", flush=True)
    HOW
"""


def hold(how):
    """Have a process lock the clocks, and then do something and end."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(HOLDER).replace("HOW", how)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "ready\n", done.stderr
    return done


class TestAnotherProcess:
    def test_frees_them_when_its_interpreter_ends(self, gpu):
        hold("1 / 0")
        assert locked(gpu) is None
        assert gpu.now("users") == 0

    def test_a_child_of_it_leaves_them_alone(self, gpu):
        how = """if os.fork() == 0: sys.exit(0)
os.wait()
from pathlib import Path
assert '"locked_sm": 1500' in Path(os.environ["STAND_IN_NVML"]).read_text()
"""
        assert hold(how).returncode == 0
        assert locked(gpu) is None

    def test_is_not_disturbed_while_it_lives(self, gpu, caplog):
        with locked_clocks("cuda:0", ASKED):
            restore_clocks("cuda:0")
            assert locked(gpu) == 1500
        assert not caplog.records


class TestUndoneByTheNext:
    """What a process has left that was killed."""

    @pytest.fixture(autouse=True)
    def left(self, gpu):
        gpu.set(locked_sm=1500)
        ClockLease(UUID).write({"sm_mhz": 1500})

    def test_whatever_it_is_about_to_do(self, gpu, caplog):
        gpu.set(locked_sm=None)
        hold("os.kill(os.getpid(), 9)")
        restore_clocks("cpu")
        assert locked(gpu) == 1500
        restore_clocks("cuda:0")
        assert locked(gpu) is None
        assert "unlocked clocks of cuda:0 that a killed run had left locked" in caplog.text
        assert list((gpu.path.parent / "cache/machine").iterdir()) == []

    def test_before_it_sets_its_own(self, gpu):
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1200)) as report:
            assert locked(gpu) == 1200
            assert report.facts()["left_over_undone"] is True
        assert locked(gpu) is None

    def test_if_that_fails_nothing_is_set(self, gpu):
        gpu.fail(RESET, code=4)
        with locked_clocks("cuda:0", ClockRequest(sm_mhz=1200)) as report:
            assert "set by a killed run cannot be reset" in report.problem
        assert gpu.calls(SET) == []

    def test_by_fib_calibrate(self, gpu, fib, monkeypatch):
        def calibrate(device, **options):
            assert locked(gpu) is None
            raise CapabilityError("there is no such device")

        monkeypatch.setattr("flashinfer_bench.bench.backends.choose_devices", lambda d: ["cuda:0"])
        monkeypatch.setattr("fib_judge.calibration.calibrate", calibrate)
        done = fib("calibrate")
        assert done.exit_code == 4
        assert "that a killed run had left locked" in done.stderr

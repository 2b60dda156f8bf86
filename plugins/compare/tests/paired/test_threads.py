"""Looking at the threads of real processes, and keeping them on cores."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from fib_compare.paired.launch import worked_alone
from flashinfer_bench.bench.executors.threads import (
    ENDED,
    cores_of,
    keep_on,
    thread_times,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="threads are looked at on Linux alone"
)

ALLOWED = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
SPIN = "def spin(n=200_000):\n    while n: n -= 1\n"
ALONE = SPIN + "def work():\n    spin()\n"
BESIDE = SPIN + (
    "import threading\n"
    "def forever():\n"
    "    while True: spin()\n"
    "threading.Thread(target=forever, daemon=True).start()\n"
    "def work():\n    spin()\n"
)
SHORT_LIVED = SPIN + (
    "import threading\n"
    "def work():\n"
    "    spin(40_000)\n"
    "    many = [threading.Thread(target=spin) for _ in range(2)]\n"
    "    [one.start() for one in many]\n"
    "    [one.join() for one in many]\n"
)
CHILD = SPIN + ("import os\nif os.fork() == 0:\n    while True: spin()\ndef work():\n    spin()\n")
SHORT_LIVED_CHILDREN = SPIN + (
    "import os\n"
    "def work():\n"
    "    spin(40_000)\n"
    "    if os.fork() == 0:\n"
    "        spin(4_000_000)\n"
    "        os._exit(0)\n"
    "    os.wait()\n"
)
TALK = "import sys\nfor line in sys.stdin:\n    {}\n    print('done', flush=True)\n"


class Child:
    """A real process that works once for each line that it is sent."""

    def __init__(self, process):
        self._process, self.pid = process, process.pid

    def work(self, times=1):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for _ in range(times):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n"

    def end(self):
        """End the process and its group."""
        if self._process.returncode is None:
            os.killpg(self.pid, 9)
            self._process.wait()


@contextmanager
def child(code, each="work()"):
    process = subprocess.Popen(
        [sys.executable, "-c", code + TALK.format(each)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    made = Child(process)
    try:
        yield made
    finally:
        made.end()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def between(one, times=5):
    """Return the times before and after some calls, and how long these would take if nobody waited.

    Not how long they took: on a busy machine that says little of what they did.
    """
    one.work()
    before = thread_times(one.pid)
    one.work(times)
    now = thread_times(one.pid)
    return before, now, (now[one.pid] - before[one.pid]) / 1e6


@pytest.mark.parametrize(
    ("code", "alone"),
    [
        pytest.param(ALONE, True, id="one thread"),
        pytest.param(BESIDE, False, id="a thread beside it"),
        pytest.param(SHORT_LIVED, False, id="threads that end"),
        pytest.param(CHILD, False, id="a child"),
        pytest.param(SHORT_LIVED_CHILDREN, False, id="children that end"),
    ],
)
def test_who_works_with_one_thread_is_known(code, alone):
    with child(code) as one:
        before, now, called_ms = between(one)
        assert worked_alone(before, now, called_ms) is alone, (before, now)


def test_of_a_process_that_has_ended_nothing_is_known():
    with child(ALONE) as one:
        one.work()
    assert thread_times(one.pid) == {}
    assert cores_of(one.pid) == frozenset()
    assert keep_on({ALLOWED[0]}, one.pid) is False


REPORT = (
    "import os, threading\n"
    "found = []\n"
    "def work():\n"
    "    one = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))\n"
    "    one.start(); one.join()\n"
    "    print(*sorted(found[-1] | os.sched_getaffinity(0)), flush=True)\n"
)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="this machine lends one core: nowhere to move")
def test_affinity_is_set_and_inherited_by_threads_started_later():
    with child(REPORT) as one:
        process = one._process
        for cores in ({ALLOWED[-1]}, {ALLOWED[0]}, set(ALLOWED)):
            assert keep_on(cores, one.pid) is True
            process.stdin.write("go\n")
            process.stdin.flush()
            assert set(map(int, process.stdout.readline().split())) == cores
            assert process.stdout.readline() == "done\n"
            assert cores_of(one.pid) == cores


@pytest.mark.parametrize(
    ("before", "now", "alone"),
    [
        ({}, {}, False),
        ({1: 5}, {1: 5}, False),
        ({1: 0}, {1: 100}, True),
        ({1: 0}, {1: 100, 2: 10}, True),
        ({1: 0}, {1: 100, 2: 11}, False),
        ({1: 0}, {1: 10**6, 2: 11}, False),
        ({1: 0, 2: 10**6}, {1: 100, 2: 10**6}, True),
        ({1: 0, ENDED: 0}, {1: 100, ENDED: 50}, False),
        ({1: 0, 2: 50, ENDED: 0}, {1: 100, ENDED: 52}, True),
    ],
)
def test_worked_alone_by_hand(before, now, alone):
    assert worked_alone(before, now, 100e-6) is alone

"""Stopped process trees, and what is read from them; with real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.bench.candidate.processes import freezer_of, tree_of  # noqa: E402
from flashinfer_bench.bench.executors import frozen  # noqa: E402
from flashinfer_bench.bench.executors.frozen import FrozenTree  # noqa: E402
from flashinfer_bench.errors import ProtocolError  # noqa: E402

REASON = frozen.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def start():
    """Start Python programs in sessions of their own."""
    started = []

    def run(source):
        command = [sys.executable, "-c", dedent(source)]
        process = subprocess.Popen(command, stdout=-1, text=True, start_new_session=True)
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(process):
    assert process.stdout is not None
    return process.stdout.readline().strip()


def number(tree, address):
    return int.from_bytes(tree.read(address, 8), sys.byteorder)


def test_threads_stand_still_too(start):
    process = start("""
        import ctypes, mmap, threading
        memory = mmap.mmap(-1, 4096)
        number = ctypes.c_uint64.from_buffer(memory)
        def count():
            while True:
                number.value += 1
        for _ in range(3):
            threading.Thread(target=count).start()
        print(ctypes.addressof(number), flush=True)
    """)
    address = int(line(process))
    tree = FrozenTree(process.pid, freezer_of(process.pid), timeout_s=5)
    first = number(tree, address)
    time.sleep(0.05)
    assert number(tree, address) == first
    tree.thaw()


def test_children_in_other_sessions_stand_still(start):
    process = start("""
        import ctypes, mmap, os, time
        memory = mmap.mmap(-1, 4096)
        number = ctypes.c_uint64.from_buffer(memory)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    number.value += 1
            time.sleep(60)
        while not number.value:
            pass
        print(ctypes.addressof(number), flush=True)
        time.sleep(60)
    """)
    address = int(line(process))
    tree = FrozenTree(process.pid, freezer_of(process.pid), timeout_s=5)
    try:
        first = number(tree, address)
        time.sleep(0.05)
        assert number(tree, address) == first
        below = set(tree_of(process.pid)) - {process.pid}
        assert len(below) == 2
    finally:
        tree.thaw()
        for pid in set(tree_of(process.pid)) - {process.pid}:
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_keeps_forking_is_caught_up_with(start):
    process = start("""
        import os, signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("up", flush=True)
        while True:
            if os.fork() == 0:
                os._exit(0)
    """)
    line(process)
    for _ in range(5):
        tree = FrozenTree(process.pid, freezer_of(process.pid), timeout_s=10)
        assert all(frozen._stands_still(pid) for pid in tree_of(process.pid))
        tree.thaw()


def test_what_wakes_others_is_stopped_itself(start):
    process = start("""
        import ctypes, mmap, os, signal
        memory = mmap.mmap(-1, 4096)
        number = ctypes.c_uint64.from_buffer(memory)
        parent = os.getpid()
        if os.fork() == 0:
            while True:
                os.kill(parent, signal.SIGCONT)
        print(ctypes.addressof(number), flush=True)
        while True:
            number.value += 1
    """)
    address = int(line(process))
    for _ in range(5):
        tree = FrozenTree(process.pid, freezer_of(process.pid), timeout_s=10)
        first = number(tree, address)
        time.sleep(0.02)
        assert number(tree, address) == first
        tree.thaw()


def test_it_is_noticed_that_a_signal_wakes_what_was_stopped(start):
    process = start("""
        print("up", flush=True)
        while True:
            pass
    """)
    line(process)
    tree = FrozenTree(process.pid, freezer_of(process.pid), timeout_s=10)
    tree.require_still()
    os.kill(process.pid, signal.SIGCONT)  # as a timer of its own would
    with pytest.raises(ProtocolError, match="kept running"):
        tree.require_still()
    tree.thaw()

"""Stopped process trees, and what is read from them; with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.bench.executors import frozen  # noqa: E402
from flashinfer_bench.bench.executors.frozen import FrozenTree  # noqa: E402
from flashinfer_bench.errors import ProtocolError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REASON = frozen.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

COUNTER = """
    import ctypes, mmap
    memory = mmap.mmap(-1, 4096)
    number = ctypes.c_uint64.from_buffer(memory)
    print(ctypes.addressof(number), flush=True)
    while True:
        number.value += 1
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start Python programs in sessions of their own."""
    started: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", dedent(source)]
        process = subprocess.Popen(command, stdout=-1, text=True, start_new_session=True)
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def number(tree: FrozenTree, address: int) -> int:
    return int.from_bytes(tree.read(address, 8), sys.byteorder)


def test_nothing_moves_while_the_tree_is_stopped(start: Any) -> None:
    process = start(COUNTER)
    address = int(line(process))
    tree = FrozenTree(process.pid, timeout_s=5)
    first = number(tree, address)
    time.sleep(0.05)
    assert number(tree, address) == first
    tree.thaw()
    deadline = time.monotonic() + 10
    while number(tree, address) == first:
        assert time.monotonic() < deadline, "it did not go on"


def test_threads_stand_still_too(start: Any) -> None:
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
    tree = FrozenTree(process.pid, timeout_s=5)
    first = number(tree, address)
    time.sleep(0.05)
    assert number(tree, address) == first
    tree.thaw()


def test_children_in_other_sessions_stand_still(start: Any) -> None:
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
    tree = FrozenTree(process.pid, timeout_s=5)
    try:
        first = number(tree, address)
        time.sleep(0.05)
        assert number(tree, address) == first
        below = set(frozen._tree(process.pid)) - {process.pid}
        assert len(below) == 2
    finally:
        tree.thaw()
        for pid in set(frozen._tree(process.pid)) - {process.pid}:
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_keeps_forking_is_caught_up_with(start: Any) -> None:
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
        tree = FrozenTree(process.pid, timeout_s=10)
        assert all(frozen._stands_still(pid) for pid in frozen._tree(process.pid))
        tree.thaw()


def test_large_memory_is_read_in_pieces(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("""
        import ctypes, sys, time
        data = ctypes.create_string_buffer(bytes(range(256)) * 1000)
        print(ctypes.addressof(data), flush=True)
        time.sleep(60)
    """)
    address = int(line(process))
    tree = FrozenTree(process.pid, timeout_s=5)
    monkeypatch.setattr(frozen, "_LONGEST_READ", 1000)
    assert bytes(tree.read(address, 256_000)) == bytes(range(256)) * 1000
    assert bytes(tree.read(address, 0)) == b""
    tree.thaw()


@pytest.mark.parametrize("address", [0, 4096, 2**47, 2**62, 2**63 - 1])
def test_memory_that_is_not_there_is_a_violation(start: Any, address: int) -> None:
    process = start(COUNTER)
    line(process)
    tree = FrozenTree(process.pid, timeout_s=5)
    with pytest.raises(ProtocolError, match="not all readable"):
        tree.read(address, 64)
    tree.thaw()


def test_a_span_that_ends_beyond_its_memory_is_a_violation(start: Any) -> None:
    process = start(COUNTER)
    address = int(line(process))
    tree = FrozenTree(process.pid, timeout_s=5)
    with pytest.raises(ProtocolError, match="not all readable"):
        tree.read(address, 1 << 28)
    tree.thaw()


def test_a_process_that_has_ended_is_told(start: Any) -> None:
    process = start("pass")
    process.wait()
    with pytest.raises(ProcessLookupError):
        FrozenTree(process.pid, timeout_s=1)


def test_a_stopped_process_can_be_killed_and_thawed_twice(start: Any) -> None:
    process = start(COUNTER)
    line(process)
    tree = FrozenTree(process.pid, timeout_s=5)
    process.kill()
    assert process.wait(timeout=5) == -signal.SIGKILL
    tree.thaw()
    tree.thaw()


def test_a_signal_that_cannot_be_caught_stops_those_who_ignore_the_others(start: Any) -> None:
    process = start("""
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        print("up", flush=True)
        while True:
            time.sleep(0.001)
    """)
    line(process)
    tree = FrozenTree(process.pid, timeout_s=5)
    assert frozen._stands_still(process.pid)
    tree.thaw()
    deadline = time.monotonic() + 5
    while frozen._stands_still(process.pid):
        assert time.monotonic() < deadline


def test_waiting_in_system_calls_goes_on_after_it(start: Any) -> None:
    process = start("""
        import socket, time
        a, b = socket.socketpair()
        b.settimeout(1.0)
        print("up", flush=True)
        try:
            b.recv(1)
        except TimeoutError:
            print("timed out as it should", flush=True)
        time.sleep(60)
    """)
    line(process)
    for _ in range(3):
        tree = FrozenTree(process.pid, timeout_s=5)
        time.sleep(0.05)
        tree.thaw()
    assert line(process) == "timed out as it should"


def test_the_state_is_read_behind_the_name_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("12 (a) R (b) T 1 2 3")
    assert frozen._state(tmp_path) == "T"
    assert frozen._state(tmp_path / "nowhere") == "X"


@pytest.mark.parametrize(
    ("scope", "user", "allowed"),
    [("0", 1000, True), ("1", 1000, True), ("2", 1000, False), ("3", 1000, False), ("2", 0, True)],
)
def test_a_security_module_may_forbid_it(
    scope: str, user: int, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: scope)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert (frozen._refusal() is None) is allowed

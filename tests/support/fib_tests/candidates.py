"""Real candidate processes; the language of their solutions comes from a plugin of the tests.

Core is tested without any plugin installed, so the tests bring their own: see ``plugins``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
import torch

from fib_tests import threads
from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.data import Definition, Solution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.bench.executors.base import Candidate, Executor, TimedCall

N = 8


def _definition(**changes) -> Definition:
    content = {
        "name": "add",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}},
        "inputs": {
            "x": {"shape": ["n"], "dtype": "float32"},
            "y": {"shape": ["n"], "dtype": "float32"},
        },
        "outputs": {"z": {"shape": ["n"], "dtype": "float32"}},
        "reference": "def run(x, y):\n    return x + y\n",
        **changes,
    }
    return Definition.model_validate(content)


def _solution(code: str, *, dps: bool = False) -> Solution:
    return Solution.model_validate(
        {
            "name": "under_test",
            "definition": "add",
            "author": "tester",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": dps,
            },
            "sources": [{"path": "main.py", "content": dedent(code)}],
        }
    )


def _exists(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Bench:
    """Starts candidates and has them load source text."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._started: list[Candidate] = []

    def spawn(self) -> Candidate:
        candidate = self.executor.spawn()
        self._started.append(candidate)
        return candidate

    def load(self, code: str, *, dps: bool = False, values=None, **definition) -> Candidate:
        candidate = self.spawn()
        candidate.load(_definition(**definition), _solution(code, dps=dps), timeout_s=30)
        values = [torch.arange(float(N)), torch.ones(N)] if values is None else values
        candidate.put_inputs(0, values, {"n": N}, timeout_s=30)
        return candidate

    def time(self, candidate: Candidate, calls: int = 1, *, timer="cpu") -> list[TimedCall]:
        """Time calls with inputs as they were put."""
        return [candidate.fire(0, timer=timer, timeout_s=30) for _ in range(calls)]

    def close(self) -> None:
        for candidate in self._started:
            candidate.close()


@pytest.fixture
def exists():
    """``exists(pid)``: whether there is such a process, and it is no zombie."""
    return _exists


@pytest.fixture
def group_exists():
    """``group_exists(pid)``: whether the group that `pid` leads or led has a living member."""

    def check(leader):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _exists(int(entry.name)):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(int(entry.name)) == leader:
                        return True
        return False

    return check


@pytest.fixture
def eventually():
    """``eventually(condition)``: whether it comes true; how soon is not a matter of the test."""
    return partial(threads.eventually, seconds=10.0)


@pytest.fixture
def descriptors():
    """``descriptors(pid)``: number of descriptors that a process has open."""
    gc.collect()  # what earlier tests have left
    return lambda pid="self": len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def definition_of():
    """Return a function that makes a definition of ``z = x + y``, with changes."""
    return _definition


@pytest.fixture
def solution_of():
    """Return a function that makes a solution from source text."""
    return _solution


@contextlib.contextmanager
def _plugin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN_FOLDER)
        patch.setenv("FIB_PLUGINS", "candidate_test_plugin")
        yield


@pytest.fixture
def plugin_in_reach() -> Iterator[None]:
    """Processes started by the test find the tests' plugin, as the test's own process does."""
    with _plugin():
        yield


@pytest.fixture(scope="session")
def server_executor() -> Iterator[ForkExecutor]:
    """One fork server for all tests that do not harm it."""
    executor = ForkExecutor("cpu")
    with _plugin():
        executor.start()
    yield executor
    executor.close()


@pytest.fixture
def bench(server_executor) -> Iterator[Bench]:
    bench = Bench(server_executor)
    yield bench
    bench.close()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)

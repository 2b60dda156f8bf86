"""Candidates without a fork server: the same answers, at the price of starting an interpreter."""

import os
import textwrap
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.candidate.processes import children_of
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.bench.executors.spawn import SpawnExecutor

CODE = """
    import os, subprocess, sys, time
    def run(x, y):
        if x[0] == 0:
            return x + y
        if x[0] == 1:
            raise ValueError("an ordinary failure")
        if x[0] == 2:
            print(subprocess.Popen(["sleep", "1000"]).pid)
            shell = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
            print(subprocess.check_output(shell, shell=True, text=True), flush=True)
            while True: pass
        os.abort()
"""


@pytest.fixture
def executor(plugin_in_reach):
    executor = SpawnExecutor("cpu")
    executor.start()
    yield executor
    executor.close()


def call_with(candidate, first, timeout_s=60.0):
    """Call it; `first` says what it is to do."""
    values = [torch.full((8,), float(first)), torch.ones(8)]
    candidate.put_inputs(0, values, {"n": 8}, timeout_s=30)
    return candidate.call(0, timeout_s=timeout_s)


def test_from_start_to_crash(executor, exists, descriptors, definition_of, solution_of):
    """One process for all of it: a start costs seconds."""
    ours = descriptors()
    candidate = executor.spawn()
    folder = Path(f"/proc/{candidate.pid}/cwd").readlink()
    loaded = candidate.load(definition_of(), solution_of(CODE), timeout_s=60)
    assert loaded.destination_passing_style is False
    assert os.getsid(candidate.pid) == os.getpgid(candidate.pid) == candidate.pid
    assert torch.equal(call_with(candidate, 0)[0], torch.ones(8))
    with pytest.raises(CandidateFailed, match="an ordinary failure"):
        call_with(candidate, 1)
    call_with(candidate, 0)
    with pytest.raises(CandidateCrashed, match="SIGABRT") as caught:
        call_with(candidate, 3)
    assert caught.value.exit_code == -6
    assert not candidate.alive
    assert "main.py" in candidate.log()
    candidate.close()
    candidate.close()
    assert not exists(candidate.pid)
    assert not folder.exists()
    assert descriptors() == ours
    assert candidate.pid not in children_of(os.getpid())


def test_a_hang_is_killed_with_all_that_it_started(
    executor, exists, eventually, definition_of, solution_of
):
    candidate = executor.spawn()
    candidate.load(definition_of(), solution_of(CODE), timeout_s=60)
    with pytest.raises(CandidateTimeout):
        call_with(candidate, 2, timeout_s=1.0)
    pids = [int(word) for word in candidate.log().split()]
    assert len(pids) == 2
    assert eventually(lambda: not any(exists(pid) for pid in (candidate.pid, *pids)))


def test_without_process_descriptors(plugin_in_reach, monkeypatch, definition_of, solution_of):
    """Where the system cannot tell that a process has ended, it is asked again and again."""
    monkeypatch.delattr(os, "pidfd_open")
    executor = SpawnExecutor("cpu")
    try:
        candidate = executor.spawn()
        assert candidate._process.fileno() == -1
        code = textwrap.dedent("""
            import os
            if os.fork() == 0:
                import time; time.sleep(1000)
            os._exit(4)
        """)
        with pytest.raises(CandidateCrashed, match="code 4"):
            candidate.load(definition_of(), solution_of(code), timeout_s=60)
    finally:
        executor.close()

"""No fault of ours, of the dataset or of the machine reaches an engine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fib_tests import engines, forked

HERE = Path(__file__).resolve().parent
FAULTS = (
    *("unknown_definitions", "lying_definitions", "wrong_shapes", "kernels_raise", "captures"),
    *("threads", "storm_of_enabling", "forked_workers", "bare_fork", "shutdown"),
)

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("flashinfer", "torch")),
    reason="flashinfer or torch is not installed",
)


def run(fault, folder):
    command = [sys.executable, str(HERE / "storm.py"), fault, str(folder)]
    # What an interpreter does at its end is that of a new one only.
    if fault == "shutdown":
        pipes = {"capture_output": True, "text": True}
        return subprocess.run(command, env=engines.environment(folder), timeout=110, **pipes)
    return forked.run(command, env=engines.environment(folder), timeout=110)


@pytest.mark.parametrize("fault", FAULTS)
def test_engines_notice_nothing(fault, tmp_path, capsys):
    done = run(fault, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        print(
            f"\n{fault}: {said['calls']} calls, {len(said['ours'])} exceptions of ours, "
            f"{len(said['wrong'])} wrong outputs"
        )
    assert said["struck"], "the fault did not strike: this proves nothing"
    assert said["ours"] == []
    assert said["wrong"] == []
    assert said["left behind"] == []
    assert said["calls"] > 0
    if fault == "shutdown":
        assert "Traceback" not in done.stderr, done.stderr[-4000:]
        assert "Exception ignored" not in done.stderr, done.stderr[-4000:]

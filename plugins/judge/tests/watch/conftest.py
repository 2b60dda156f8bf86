"""A GPU that is a file: `stand_in/pynvml.py` in place of NVML's bindings."""

import fcntl
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fib_tests.cli import fib

STAND_IN = Path(__file__).parent / "stand_in"
UUID = "8f14e45f-ceea-467f-a8b1-9f2d7c3e5a01"


class StandInGpu:
    """The state of the GPU, shared with every process that asks for it."""

    def __init__(self, path):
        self.path = path
        path.write_text("{}")

    @contextmanager
    def _state(self):
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # other processes may be asking
            state = json.loads(file.read())
            yield state
            file.seek(0)
            file.write(json.dumps(state))
            file.truncate()

    def now(self, name):
        """Return a part of the state; None if nobody has set or asked anything yet."""
        with self._state() as state:
            return state.get(name)

    def set(self, **changes):
        """Change the state."""
        with self._state() as state:
            state.update(changes)

    def fail(self, *names, code=3):
        """Have functions end with an error; by default that they are not supported."""
        self.set(fails={**(self.now("fails") or {}), **dict.fromkeys(names, code)})

    def calls(self, name):
        """Return the arguments of all calls of a function."""
        return [call[1:] for call in self.now("calls") or [] if call[0] == name]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU, found as ``cuda:0``, in this process and in those that it starts."""
    monkeypatch.setenv("STAND_IN_NVML", str(tmp_path / "gpu.json"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{UUID}")
    monkeypatch.setenv("FIB_LOCK_PATH", str(tmp_path / "locks"))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    yield StandInGpu(tmp_path / "gpu.json")
    sys.modules.pop("pynvml", None)

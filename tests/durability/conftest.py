"""The scripts of this folder as modules, and small file systems to fill and to lock."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _script(name: str) -> Any:
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


@pytest.fixture(scope="session")
def kills() -> Any:
    return _script("kill_points")


@pytest.fixture(scope="session")
def crowd() -> Any:
    return _script("crowd")


def _can_mount() -> bool:
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: Any) -> Any:
    """Runs a shell script that may mount file systems, seen by nobody else."""
    if not _can_mount():
        pytest.skip("no file system can be mounted here without privileges")

    def run(script: str, *args: Any, code: int = 0) -> str:
        command = ["unshare", "-Urm", "sh", "-euc", script, sys.executable, *map(str, args)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=100
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run

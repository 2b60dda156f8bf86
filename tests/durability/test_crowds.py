"""Many writers at once, with each kind of lock and of sync."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from flashinfer_bench.data.storage import SOFT_LOCK_SUFFIX


def test_four_writers_of_two_thousand_appends(crowd, kills, tmp_path):
    root = kills.write_dataset(tmp_path)
    assert crowd.append_all(root, writers=4, appends=2000) == []
    assert not list(root.rglob("*.torn"))


@pytest.mark.parametrize(("name", "value"), [("FIB_DATASET_LOCK", "soft"), ("FIB_FSYNC", "never")])
def test_other_settings_lose_nothing_either(crowd, kills, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    root = kills.write_dataset(tmp_path)
    assert crowd.append_all(root, writers=3, appends=150) == []
    assert not list(root.rglob(f".*{SOFT_LOCK_SUFFIX}"))


def test_a_soft_lock_of_a_killed_process_is_taken_over(kills, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_LOCK", "soft")
    root = kills.write_dataset(tmp_path)
    script = """
import os, signal, sys
from pathlib import Path
from flashinfer_bench.data.storage import locked
with locked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    path = kills.trace_file(root)
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(root.rglob(f".*{SOFT_LOCK_SUFFIX}"))
    from flashinfer_bench.data.storage import append_lines

    append_lines(path, [b"{}\n"])
    assert path.read_bytes() == b"{}\n"
    assert not list(root.rglob(f".*{SOFT_LOCK_SUFFIX}"))


def test_a_soft_lock_that_is_held_is_named_with_the_way_out(kills, tmp_path, monkeypatch):
    from flashinfer_bench.data.storage import locked, soft_lock_path
    from flashinfer_bench.errors import StorageError

    monkeypatch.setenv("FIB_DATASET_LOCK", "soft")
    path = tmp_path / "x.jsonl"
    soft_lock_path(path).write_text("1\nanother-host\n")
    held = pytest.raises(StorageError, match="locked by another process")
    with held as caught, locked(path, timeout_s=0.1):
        pass
    assert "fib doctor --repair" in caught.value.hint
    assert soft_lock_path(path).exists()

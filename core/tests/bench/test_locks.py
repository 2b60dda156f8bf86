from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.bench.locks import device_lock
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import sys
from flashinfer_bench.bench.locks import device_lock
with device_lock(sys.argv[1]) as held:
    print("held" if held else "not held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(device: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_excludes_another_process() -> None:
    with another_process("cpu"):
        looks = iter([False, False, True])
        with device_lock("cpu", lambda: next(looks)) as held:
            assert held is False


def test_death_of_the_holder_frees_it() -> None:
    with another_process("cpu") as process:
        process.kill()
        with device_lock("cpu") as held:
            assert held is True


@pytest.mark.parametrize("place", ["", "locks"])
def test_folder_that_cannot_be_made(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_LOCK_PATH", str(tmp_path / "file" / place))
    with (
        pytest.raises(RunnerFatalError, match="cannot lock") as caught,
        device_lock("cpu"),
    ):
        pass
    assert "FIB_LOCK_PATH" in str(caught.value.hint)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of locks for one test."""
    made = tmp_path / "locks"
    monkeypatch.setenv("FIB_LOCK_PATH", str(made))
    return made


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link"])
def test_lock_file_that_is_something_else(kind: str, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    path = folder / "device-cpu.lock"
    victim = tmp_path / "victim"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # opening one would wait for somebody at its other end
    else:
        if kind == "link":
            victim.write_text("not yours")
        path.symlink_to(victim)
    with pytest.raises(RunnerFatalError, match="cannot lock"), device_lock("cpu"):
        pass
    assert victim.exists() == (kind == "link")


def test_a_lock_whose_file_is_removed_while_it_is_waited_for(folder: Path) -> None:
    with another_process("cpu") as process:
        assert process.stdin is not None

        def remove_and_release() -> None:
            (folder / "device-cpu.lock").unlink()
            assert process.stdin is not None
            process.stdin.close()

        threading.Timer(0.2, remove_and_release).start()
        with device_lock("cpu") as held:
            assert held is True
            # It is the lock of the file that others find now.
            with device_lock("cpu", lambda: True) as again:
                assert again is False

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.bench import physical
from flashinfer_bench.bench.locks import DeviceLock, lock_path
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = """
import sys
from flashinfer_bench.bench.locks import DeviceLock
with DeviceLock(sys.argv[1]).held() as held:
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
        with DeviceLock("cpu").held(lambda: next(looks)) as held:
            assert held is False


def test_waits_until_it_is_free() -> None:
    with another_process("cpu") as process:
        assert process.stdin is not None
        threading.Timer(0.2, process.stdin.close).start()
        with DeviceLock("cpu").held() as held:
            assert held is True
            assert process.wait(timeout=30) == 0


def test_death_of_the_holder_frees_it() -> None:
    with another_process("cpu") as process:
        process.kill()
        with DeviceLock("cpu").held() as held:
            assert held is True


def test_devices_are_independent() -> None:
    with another_process("cuda:0"), DeviceLock("cuda:1").held() as held:
        assert held is True


def test_excludes_threads_too() -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with DeviceLock("cpu").held():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_is_released_when_the_body_raises() -> None:
    with pytest.raises(KeyError), DeviceLock("cpu").held():
        raise KeyError
    with DeviceLock("cpu").held(lambda: True) as held:
        assert held is True


def test_waiting_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashinfer_bench.bench.locks._NOTICE_AFTER_S", 0.0)
    looks = iter([False, False, True])
    with (
        another_process("cpu"),
        caplog.at_level("INFO", "flashinfer_bench.bench"),
        DeviceLock("cpu").held(lambda: next(looks)),
    ):
        pass
    assert [record.message for record in caplog.records].count(
        "waiting for cpu: another process measures there"
    ) == 1


@pytest.mark.parametrize("place", ["", "locks"])
def test_folder_that_cannot_be_made(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_LOCK_PATH", str(tmp_path / "file" / place))
    with (
        pytest.raises(RunnerFatalError, match="cannot lock") as caught,
        DeviceLock("cpu").held(),
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
    path = lock_path("cpu")
    assert path.parent == folder
    victim = tmp_path / "victim"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # opening one would wait for somebody at its other end
    else:
        if kind == "link":
            victim.write_text("not yours")
        path.symlink_to(victim)
    with pytest.raises(RunnerFatalError, match="cannot lock"), DeviceLock("cpu").held():
        pass
    assert victim.exists() == (kind == "link")


def test_a_file_that_a_dead_process_left_means_nothing(folder: Path) -> None:
    folder.mkdir()
    lock_path("cpu").write_text("1234567\n")
    with DeviceLock("cpu").held(lambda: True) as held:
        assert held is True
    assert lock_path("cpu").read_text() == "1234567\n"  # nothing is ever written to it


def test_a_lock_whose_file_is_removed_while_it_is_waited_for(folder: Path) -> None:
    with another_process("cpu") as process:
        assert process.stdin is not None

        def remove_and_release() -> None:
            lock_path("cpu").unlink()
            assert process.stdin is not None
            process.stdin.close()

        threading.Timer(0.2, remove_and_release).start()
        with DeviceLock("cpu").held() as held:
            assert held is True
            # It is the lock of the file that others find now.
            with DeviceLock("cpu").held(lambda: True) as again:
                assert again is False


def test_a_file_that_is_removed_each_time_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashinfer_bench.bench.locks._is_named", lambda *args: False)
    with pytest.raises(RunnerFatalError, match="again and again"), DeviceLock("cpu").held():
        pass
    assert open_descriptors(folder) == []


def test_no_descriptor_is_left_open(folder: Path) -> None:
    for _ in range(3):
        with DeviceLock("cpu").held(), DeviceLock("cpu").held(lambda: True) as again:
            assert again is False
            assert len(open_descriptors(folder)) == 1
    assert open_descriptors(folder) == []


def open_descriptors(folder: Path) -> list[str]:
    """Return what this process has open in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(str(folder))]


class TestPath:
    """Where the device itself has no name that can be found out."""

    @pytest.fixture(autouse=True)
    def _no_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(physical, "_uuid_from_torch", lambda number: None)
        monkeypatch.setattr(physical, "_uuid_from_driver", lambda number: None)

    @pytest.mark.parametrize(
        ("visible", "device", "name"),
        [
            ("", "cpu", "device-cpu.lock"),
            ("", "cuda", "device-cuda-0.lock"),
            ("", "cuda:1", "device-cuda-1.lock"),
            ("5,7", "cuda:1", "device-cuda-7.lock"),
            ("5,7", "cuda", "device-cuda-5.lock"),
            ("5", "cuda:3", "device-cuda-3.lock"),
            ("GPU-1a/../b", "cuda:0", "device-cuda-GPU-1a____b.lock"),
        ],
    )
    def test_is_named_after_the_entry(
        self,
        visible: str,
        device: str,
        name: str,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert lock_path(device) == folder / name

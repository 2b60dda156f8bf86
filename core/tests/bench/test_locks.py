import os
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashinfer_bench.bench import locks
from flashinfer_bench.bench.locks import device_lock, lock_file, open_lock_folder
from flashinfer_bench.errors import RunnerFatalError

HOLDER = """
import sys
from flashinfer_bench.bench.locks import device_lock
with device_lock(sys.argv[1]) as held:
    print("held" if held else "not held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(device):
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


def test_excludes_another_process():
    with another_process("cpu"):
        looks = iter([False, False, True])
        with device_lock("cpu", lambda: next(looks)) as held:
            assert held is False


def test_death_of_the_holder_frees_it():
    with another_process("cpu") as process:
        process.kill()
        with device_lock("cpu") as held:
            assert held is True


@pytest.mark.parametrize("place", ["", "locks"])
def test_folder_that_cannot_be_made(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIB_LOCK_PATH", str(tmp_path / "file" / place))
    with (
        pytest.raises(RunnerFatalError, match="cannot lock") as caught,
        device_lock("cpu"),
    ):
        pass
    assert "FIB_LOCK_PATH" in str(caught.value.hint)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of locks for one test."""
    made = tmp_path / "locks"
    monkeypatch.setenv("FIB_LOCK_PATH", str(made))
    return made


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link"])
def test_lock_file_that_is_something_else(kind, folder, tmp_path):
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


def test_a_lock_whose_file_is_removed_while_it_is_waited_for(folder):
    with another_process("cpu") as process:
        assert process.stdin is not None

        def remove_and_release():
            (folder / "device-cpu.lock").unlink()
            assert process.stdin is not None
            process.stdin.close()

        threading.Timer(0.2, remove_and_release).start()
        with device_lock("cpu") as held:
            assert held is True
            # It is the lock of the file that others find now.
            with device_lock("cpu", lambda: True) as again:
                assert again is False


# -------------------------------------------------------------- one folder of locks for all users

NOBODY = 65534

# Locks a file in a folder as another user; imports nothing that this user might not read.
AS_ANOTHER = """
import fcntl, os, sys
sys.stdin.readline()
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("held", flush=True)
except BlockingIOError:
    print("busy", flush=True)
sys.stdin.readline()
try:
    os.unlink(sys.argv[1])
    print("removed", flush=True)
except PermissionError:
    print("kept", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def common(tmp_path, monkeypatch):
    """Stands for the folder in /tmp; not made yet."""
    monkeypatch.delenv("FIB_LOCK_PATH", raising=False)
    folder = tmp_path / "common"
    monkeypatch.setattr(locks, "COMMON", folder)
    locks._tell.cache_clear()
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def used():
    """Return the folder that is used."""
    with open_lock_folder() as descriptor:
        return Path(f"/proc/self/fd/{descriptor}").readlink()


class TestCommonFolder:
    @pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
    def test_is_made_open_to_all_and_sticky(self, common, mask):
        before = os.umask(mask)
        try:
            assert used() == common
            with open_lock_folder() as descriptor:
                os.close(lock_file(descriptor, "device-x.lock"))
        finally:
            os.umask(before)
        assert mode(common) == 0o1777
        assert mode(common / "device-x.lock") == 0o644  # others need only read it

    def test_a_link_is_not_followed(self, common, tmp_path, cache_folder, caplog):
        target = tmp_path / "target"
        target.mkdir(mode=0o1777)
        common.symlink_to(target)
        assert used() == used() == cache_folder / "locks"
        assert list(target.iterdir()) == []
        (record,) = caplog.records  # told once
        assert record.levelname == "WARNING"
        assert str(common) in record.message
        assert "FIB_LOCK_PATH" in record.message

    def test_locks_of_processes_with_other_caches_exclude_each_other(self, common, tmp_path):
        code = (
            "import pathlib, sys\n"
            "from flashinfer_bench.bench import locks\n"
            "from flashinfer_bench.bench.locks import device_lock\n"
            "locks.COMMON = pathlib.Path(sys.argv[1])\n"
            "with device_lock('cpu', lambda: True) as held:\n"
            "    print(held)\n"
        )
        environment = {**os.environ, "FIB_CACHE_PATH": str(tmp_path / "another")}
        command = [sys.executable, "-c", code, str(common)]

        def ask():
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            return done.stdout.strip()

        with device_lock("cpu") as held:
            assert held
            assert ask() == "False"
        assert ask() == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
class TestTwoUsers:
    @pytest.fixture(autouse=True)
    def _reachable(self, tmp_path):
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == os.geteuid() and not mode(folder) & 0o001:
                folder.chmod(mode(folder) | 0o011)

    def other(self, path):
        return subprocess.Popen(
            ["/usr/bin/env", "python3", "-c", AS_ANOTHER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=NOBODY,
            cwd="/",
        )

    def test_a_file_that_another_made_is_used(self, common):
        # Where the system guards such folders, even root may not open it with O_CREAT.
        with open_lock_folder() as folder:
            path = common / "device-x.lock"
            path.touch(mode=0o644)
            os.chown(path, NOBODY, NOBODY)
            with self.other(path) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "held\n"
                assert lock_file(folder, "device-x.lock") == -1
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "removed\n"
                process.kill()
            # The next one makes it anew.
            descriptor = lock_file(folder, "device-x.lock")
            assert descriptor >= 0
            os.close(descriptor)

    @pytest.mark.parametrize("found", [0o755, 0o777, 0o1755])
    def test_a_folder_of_another_that_is_not_as_it_should_be(
        self, found, common, cache_folder, caplog
    ):
        common.mkdir()
        common.chmod(found)
        os.chown(common, NOBODY, NOBODY)
        assert used() == cache_folder / "locks"
        assert f"mode {found:o} instead of 1777" in caplog.text
        assert mode(common) == found

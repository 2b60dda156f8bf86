"""Locks and results on disk, with real processes."""

import os
import signal
import time

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.compile import cache
from flashinfer_bench.compile.cache import is_complete, own_place, use_overlay
from flashinfer_bench.compile.toolkit import build_lock, build_once
from flashinfer_bench.errors import BuildError, StorageError

HOLD_LOCK = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile.toolkit import build_lock

with build_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

START_AND_HANG = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile.toolkit import build_once

def produce(working):
    (working / "half").write_text("half of it")
    print("started", flush=True)
    time.sleep(60)

build_once(Path(sys.argv[1]), produce)
"""


def write(text):
    def produce(folder):
        (folder / "result").write_text(text)

    return produce


class TestBuildOnce:
    @pytest.mark.skipif(os.name != "posix", reason="signals")
    def test_a_killed_build_leaves_nothing_that_counts_and_the_next_works(self, tmp_path, python):
        folder = tmp_path / "abc"
        process = python.start(START_AND_HANG, folder)
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not is_complete(folder)
        assert len(list(tmp_path.glob("abc.partial-*/half"))) == 1
        build_once(folder, write("ok"))
        assert (folder / "result").read_text() == "ok"
        assert not (folder / "half").exists()
        assert list(tmp_path.glob("abc.partial-*")) == []

    @pytest.mark.skipif(os.name != "posix", reason="signals")
    def test_what_killed_builds_left_goes_with_the_next_of_any_name(self, cache_folder, python):
        dead, alive = (cache_folder / "builder" / name for name in ("dead", "alive"))
        processes = [python.start(START_AND_HANG, folder) for folder in (dead, alive)]
        assert [process.stdout.readline() for process in processes] == [b"started\n"] * 2
        processes[0].kill()
        processes[0].communicate()
        build_once(dead.with_name("other"), write("ok"))
        (left,) = dead.parent.glob("*.partial-*/half")
        assert left.parent.name.startswith("alive.partial-")
        processes[1].kill()
        processes[1].communicate()

    def test_a_full_disk_is_a_storage_error_and_the_next_one_works(self, tmp_path, monkeypatch):
        def full(*args):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", full)
            with pytest.raises(StorageError, match="No space left"):
                build_once(tmp_path / "abc", write("ok"))
        assert not is_complete(tmp_path / "abc")
        assert is_complete(build_once(tmp_path / "abc", write("ok")))

    def test_a_cache_that_cannot_be_written_is_a_storage_error(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="cannot be locked"):
            build_once(tmp_path / "file" / "abc", write("ok"))


class TestLock:
    def test_a_lock_held_elsewhere_times_out_with_its_name(self, tmp_path, python, caplog):
        caplog.set_level("INFO")
        holder = python.start(HOLD_LOCK, tmp_path / "lock")
        try:
            assert holder.stdout.readline() == b"held\n"
            with (
                pytest.raises(BuildError, match=r"held .*lock for more than 0\.3 s") as caught,
                build_lock(tmp_path / "lock", timeout_s=0.3),
            ):
                pytest.fail("two holders")
            assert "end the process" in caught.value.hint
            assert "waiting for the build" in caplog.text
        finally:
            holder.kill()
            holder.communicate()

    def test_two_threads_take_turns(self, tmp_path):
        inside, most = [], []

        def work():
            with build_lock(tmp_path / "lock"):
                inside.append(None)
                most.append(len(inside))
                time.sleep(0.01)
                inside.pop()

        at_once(4, work)
        assert most == [1, 1, 1, 1]


# ---------------------------------------------------------------------------- a folder of its own


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.fixture
def overlay(tmp_path, monkeypatch, shared):
    monkeypatch.setattr(cache, "_overlay", None)
    use_overlay(tmp_path / "own")
    return tmp_path / "own"


def fill(folder):
    (folder / "library").write_text("x")


def fail(folder):
    raise AssertionError("it is there already")


def test_what_is_not_there_is_built_apart(shared, overlay):
    got = build_once(shared / "builder" / "a", fill)
    assert got == overlay / "builder" / "a"
    assert is_complete(got)
    assert not shared.exists()


def test_what_others_have_built_is_taken(shared, overlay, monkeypatch):
    monkeypatch.setattr(cache, "_overlay", None)
    build_once(shared / "builder" / "a", fill)
    use_overlay(overlay)
    assert build_once(shared / "builder" / "a", fail) == shared / "builder" / "a"
    assert not overlay.exists()


def test_what_lies_in_the_folder_itself_stays(shared, monkeypatch):
    """It is in the cache, too."""
    monkeypatch.setattr(cache, "_overlay", None)
    use_overlay(shared / "candidates" / "x")
    first = own_place(shared / "builder" / "a")
    assert first == own_place(first) == shared / "candidates" / "x" / "builder" / "a"

"""Builds, locks and scratch folders on disk, with real processes."""

import os
import time
from pathlib import Path

import pytest

from fib_tests.threads import at_once
from flashinfer_bench.compile import cache
from flashinfer_bench.compile.cache import is_complete, own_place, use_overlay
from flashinfer_bench.compile.toolkit import build_lock, build_once, scratch_folder
from flashinfer_bench.errors import StorageError

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


def fill(folder):
    (folder / "result").write_text("ok")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_build_leaves_nothing_that_counts_and_the_next_works(tmp_path, python):
    folder = tmp_path / "abc"
    process = python.start(START_AND_HANG, folder)
    assert process.stdout.readline() == b"started\n"
    process.kill()
    process.communicate()
    assert not is_complete(folder)
    assert len(list(tmp_path.glob("abc.partial-*/half"))) == 1
    build_once(folder, fill)
    assert (folder / "result").read_text() == "ok"
    assert not (folder / "half").exists()
    assert list(tmp_path.glob("abc.partial-*")) == []


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_what_killed_builds_left_goes_with_the_next_of_any_name(cache_folder, python):
    dead, alive = (cache_folder / "builder" / name for name in ("dead", "alive"))
    processes = [python.start(START_AND_HANG, folder) for folder in (dead, alive)]
    assert [process.stdout.readline() for process in processes] == [b"started\n"] * 2
    processes[0].kill()
    processes[0].communicate()
    build_once(dead.with_name("other"), fill)
    (left,) = dead.parent.glob("*.partial-*/half")
    assert left.parent.name.startswith("alive.partial-")
    processes[1].kill()
    processes[1].communicate()


def test_a_full_disk_is_a_storage_error_and_the_next_one_works(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="No space left"):
            build_once(tmp_path / "abc", fill)
    assert not is_complete(tmp_path / "abc")
    assert is_complete(build_once(tmp_path / "abc", fill))


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be locked"):
        build_once(tmp_path / "file" / "abc", fill)


def test_threads_take_turns_and_say_what_they_wait_for(tmp_path, caplog):
    caplog.set_level("INFO")
    inside, most = [], []

    def work():
        with build_lock(tmp_path / "lock"):
            inside.append(None)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    at_once(4, work)
    assert most == [1, 1, 1, 1]
    assert "waiting for the build" in caplog.text


def test_an_overlay_takes_what_others_have_built_and_builds_apart(tmp_path, monkeypatch):
    shared, overlay = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setenv("FIB_CACHE_PATH", str(shared))
    monkeypatch.setattr(cache, "_overlay", None)
    build_once(shared / "builder" / "a", fill)
    use_overlay(overlay)
    assert build_once(shared / "builder" / "a", None) == shared / "builder" / "a"
    assert not overlay.exists()
    got = build_once(shared / "builder" / "b", fill)
    assert got == overlay / "builder" / "b"
    assert is_complete(got)
    assert not (shared / "builder" / "b").exists()
    # An overlay in the cache itself stays where it is.
    use_overlay(shared / "candidates" / "x")
    first = own_place(shared / "builder" / "c")
    assert first == own_place(first) == shared / "candidates" / "x" / "builder" / "c"


# ---------------------------------------------------------------------------------------- scratch

MAKE = """
import sys, time
from flashinfer_bench.compile.toolkit import scratch_folder
for name in sys.argv[2:]:
    print(scratch_folder(name), flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_a_process_may_be_given_a_folder_of_its_own(cache_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_scratch", None)
    cache.use_scratch(tmp_path)
    assert scratch_folder("pkg").parent == tmp_path
    assert not (cache_folder / "scratch").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_what_a_killed_process_left_is_removed_by_the_next(cache_folder, python):
    process = python.start(MAKE, 60, "a")
    left = Path(process.stdout.readline().decode().strip())
    process.kill()
    process.communicate()
    assert left.is_dir()
    scratch_folder("pkg")
    assert not left.exists()
    assert len(list((cache_folder / "locks" / "scratch").glob("*.lock"))) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_forked_child_has_a_folder_of_its_own(cache_folder, python):
    mine = scratch_folder("parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(scratch_folder("child")).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    theirs = Path(os.read(reader, 4096).decode())
    os.close(reader)
    assert theirs.parent != mine.parent
    assert theirs.parent.parent == mine.parent.parent
    # It did not take the parent's lock along, or drop it.
    python.run(MAKE, 0, "other")
    assert mine.is_dir()
    assert not theirs.exists()


def test_a_cache_that_cannot_be_written_says_what_to_set(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot be written") as caught:
        scratch_folder("pkg")
    assert "FIB_CACHE_PATH" in caught.value.hint


def test_what_somebody_else_keeps_there_is_left_alone(cache_folder):
    (cache_folder / "scratch" / "theirs").mkdir(parents=True)
    (cache_folder / "locks" / "scratch").mkdir(parents=True)
    (cache_folder / "locks" / "scratch" / "theirs.lock").touch()
    scratch_folder("mine")
    assert (cache_folder / "scratch" / "theirs").is_dir()

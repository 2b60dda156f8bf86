"""Folders that go away with their process, with real processes."""

import os
import signal
from pathlib import Path

import pytest

from flashinfer_bench.compile import cache
from flashinfer_bench.compile.toolkit import scratch_folder
from flashinfer_bench.errors import StorageError

MAKE = """
import sys, time
from flashinfer_bench.compile.toolkit import scratch_folder
for name in sys.argv[2:]:
    print(scratch_folder(name), flush=True)
time.sleep(float(sys.argv[1]))
"""


def held(base):
    return sorted(path.stem for path in (base.parent / "locks" / base.name).glob("*.lock"))


def test_a_process_may_be_given_a_folder_of_its_own(cache_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_scratch", None)
    cache.use_scratch(tmp_path)
    assert scratch_folder("pkg").parent == tmp_path
    assert not (cache_folder / "scratch").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_what_a_killed_process_left_is_removed_by_the_next(cache_folder, python):
    process = python.start(MAKE, 60, "a")
    left = Path(process.stdout.readline().decode().strip())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left.is_dir()
    scratch_folder("pkg")
    assert not left.exists()
    assert len(held(cache_folder / "scratch")) == 1


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

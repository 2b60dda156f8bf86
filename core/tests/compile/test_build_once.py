"""Locks and results on disk, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from flashinfer_bench.compile.toolkit import build_lock, build_once, cache_folder, is_complete
from flashinfer_bench.errors import BuildError, StorageError

COUNT_AND_BUILD = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile.toolkit import build_once

folder, log = map(Path, sys.argv[1:])

def produce(working):
    with log.open("a") as stream:
        stream.write("built\\n")
    time.sleep(0.3)
    (working / "result").write_text("whole")

print((build_once(folder, produce) / "result").read_text())
"""

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


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def write(text: str):
    def produce(folder):
        (folder / "result").write_text(text)

    return produce


def never(folder):
    pytest.fail("built although it was there")


class TestBuildOnce:
    def test_the_result_is_whole_and_in_its_place(self, tmp_path):
        folder = tmp_path / "builds" / "abc"
        assert build_once(folder, write("ok")) == folder
        assert (folder / "result").read_text() == "ok"
        assert is_complete(folder)

    def test_the_second_time_nothing_is_built(self, tmp_path):
        build_once(tmp_path / "abc", write("ok"))
        build_once(tmp_path / "abc", never)

    def test_four_processes_build_one_thing_once(self, tmp_path):
        folder, log = tmp_path / "builds" / "abc", tmp_path / "log"
        processes = [start(COUNT_AND_BUILD, folder, log) for _ in range(4)]
        assert [process.communicate()[0] for process in processes] == ["whole\n"] * 4
        assert log.read_text() == "built\n"

    def test_eight_threads_build_one_thing_once(self, tmp_path):
        built = []

        def produce(folder):
            built.append(folder)
            time.sleep(0.05)

        threads = [
            threading.Thread(target=build_once, args=(tmp_path / "abc", produce)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(built) == 1

    def test_a_failed_build_leaves_nothing_and_the_next_one_works(self, tmp_path):
        def produce(folder):
            (folder / "half").write_text("half")
            raise BuildError("no such header")

        with pytest.raises(BuildError, match="no such header"):
            build_once(tmp_path / "abc", produce)
        assert not (tmp_path / "abc").exists()
        assert list(tmp_path.glob("abc.partial-*")) == []
        assert (build_once(tmp_path / "abc", write("ok")) / "result").read_text() == "ok"

    @pytest.mark.skipif(os.name != "posix", reason="signals")
    def test_a_killed_build_leaves_nothing_that_counts_and_the_next_one_works(self, tmp_path):
        folder = tmp_path / "abc"
        process = start(START_AND_HANG, folder)
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not is_complete(folder)
        assert len(list(tmp_path.glob("abc.partial-*/half"))) == 1
        build_once(folder, write("ok"))
        assert (folder / "result").read_text() == "ok"
        assert not (folder / "half").exists()
        assert list(tmp_path.glob("abc.partial-*")) == []

    def test_a_folder_without_the_mark_is_built_anew(self, tmp_path):
        (tmp_path / "abc").mkdir()
        (tmp_path / "abc" / "result").write_text("damaged")
        build_once(tmp_path / "abc", write("ok"))
        assert (tmp_path / "abc" / "result").read_text() == "ok"

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
    def test_two_threads_take_turns(self, tmp_path):
        inside, most = [], []

        def work():
            with build_lock(tmp_path / "lock"):
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

    def test_it_is_dropped_when_the_block_raises(self, tmp_path):
        with pytest.raises(RuntimeError), build_lock(tmp_path / "lock"):
            raise RuntimeError
        with build_lock(tmp_path / "lock", timeout_s=1):
            pass

    def test_a_lock_held_elsewhere_times_out_with_its_name(self, tmp_path, caplog):
        caplog.set_level("INFO")
        holder = start(HOLD_LOCK, tmp_path / "lock")
        try:
            assert holder.stdout.readline() == "held\n"
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

    @pytest.mark.skipif(os.name != "posix", reason="signals")
    def test_the_lock_of_a_killed_process_is_free(self, tmp_path):
        holder = start(HOLD_LOCK, tmp_path / "lock")
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        with build_lock(tmp_path / "lock", timeout_s=5):
            assert (tmp_path / "lock").exists()

    def test_a_stale_file_locks_nothing(self, tmp_path):
        (tmp_path / "lock").write_text("left by somebody")
        with build_lock(tmp_path / "lock", timeout_s=1):
            pass

    def test_a_waiting_process_goes_on_when_the_lock_is_free(self, tmp_path):
        folder, log = tmp_path / "abc", tmp_path / "log"
        with build_lock(folder.with_name("abc.lock")):
            waiting = start(COUNT_AND_BUILD, folder, log)
            time.sleep(0.5)
            assert waiting.poll() is None
            assert not log.exists()
        assert waiting.communicate()[0] == "whole\n"


def test_folders_of_the_cache_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "elsewhere"))
    assert cache_folder("triton") == tmp_path / "elsewhere" / "triton"
    assert not cache_folder("triton").exists()

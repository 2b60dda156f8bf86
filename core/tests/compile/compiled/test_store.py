"""Listing and pruning the cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flashinfer_bench.compile.store import STATES, list_entries, prune
from flashinfer_bench.compile.toolkit import build_lock, build_once, scratch_folder
from flashinfer_bench.errors import StorageError

NAME = "fib_x_" + "0123456789abcdef" * 4

HOLD = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile.toolkit import build_lock

with build_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

SCRATCH = """
import sys, time
from flashinfer_bench.compile.toolkit import scratch_folder

(scratch_folder("x") / "file").write_text("x" * 1000)
print("there", flush=True)
time.sleep(60)
"""


@pytest.fixture
def build(c):
    """Return a function that builds a solution and dates its last use back."""

    def make(number, *, age=0.0, name=None):
        text = f"double run(double x) {{ return {number} * x; }}\n"
        solution = c.solution(text, name=name or f"times {number}")
        artefact = c.CBuilder().compile(c.definition(), solution)
        then = time.time() - age
        os.utime(artefact.folder / ".complete", (then, then))
        return artefact

    return make


def solutions(entries):
    return [entry.solution for entry in entries]


class TestList:
    def test_an_empty_cache(self, cache_folder):
        assert list_entries() == []
        assert list_entries(cache_folder / "nowhere") == []

    def test_a_build(self, build):
        artefact = build(2, age=50)
        (entry,) = list_entries()
        assert entry.builder == "c"
        assert entry.solution == "times 2"
        assert entry.language == "c"
        assert entry.path == artefact.folder
        assert entry.state == "complete"
        assert entry.bytes == sum(
            path.stat().st_size for path in artefact.folder.rglob("*") if path.is_file()
        )
        assert 45 < time.time() - entry.last_used < 60
        assert -2 < time.time() - entry.created < 30

    def test_the_least_recently_used_comes_first(self, build):
        for number, age in ((1, 10), (2, 30), (3, 20)):
            build(number, age=age)
        assert solutions(list_entries()) == ["times 2", "times 3", "times 1"]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda a: a.library.unlink(),
            lambda a: a.library.write_bytes(b"x"),
            lambda a: (a.folder / ".complete").unlink(),
            lambda a: (a.folder / "build.json").write_text("{}"),
        ],
    )
    def test_damage_is_seen(self, build, damage):
        damage(build(1))
        assert [entry.state for entry in list_entries()] == ["damaged"]

    def test_a_flipped_bit_is_seen_by_those_who_look_closely(self, build):
        library = build(1).library
        content = bytearray(library.read_bytes())
        content[-1] ^= 1
        library.write_bytes(bytes(content))
        assert [entry.state for entry in list_entries()] == ["complete"]
        assert [entry.state for entry in list_entries(verify=True)] == ["damaged"]

    def test_what_is_no_build(self, cache_folder, build):
        build(1)
        (cache_folder / "locks").mkdir()
        (cache_folder / "locks" / "device-cpu.lock").touch()
        (cache_folder / "c" / "notes").mkdir()
        (cache_folder / "c" / "link").symlink_to("/")
        (cache_folder / "file at the top").touch()
        states = {entry.path.name: entry.state for entry in list_entries()}
        assert states.pop("locks") == "other"
        assert states.pop("notes") == "other"
        assert states.pop("link") == "other"
        assert list(states.values()) == ["complete"]

    def test_the_result_of_a_builder_without_a_description(self, cache_folder):
        build_once(cache_folder / "x" / NAME, lambda folder: (folder / "file").write_text("12345"))
        (entry,) = list_entries()
        assert (entry.builder, entry.state, entry.bytes) == ("x", "complete", 5)
        assert entry.solution == entry.language == ""

    def test_lock_files_without_a_build(self, cache_folder):
        for name in (f"{NAME}.lock", f"{NAME}.building.lock", "other.lock"):
            (cache_folder / "x").mkdir(exist_ok=True)
            (cache_folder / "x" / name).touch()
        assert sorted(entry.state for entry in list_entries()) == ["lock", "lock", "other"]

    def test_a_cache_that_cannot_be_read(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="cannot be read"):
            list_entries(tmp_path / "file")

    def test_what_only_has_such_a_name_is_left_alone(self, cache_folder, build):
        build(1)
        token = f"123-{'0' * 32}"
        for path in (
            f"theirs/{NAME}",
            f"theirs/{NAME}.partial-abc",
            f"c/{NAME}",
            f"scratch/{token}",
        ):
            (cache_folder / path).mkdir(parents=True)
            (cache_folder / path / "precious").write_text("x")
        for marked in ("build.json", ".complete"):
            (cache_folder / "theirs" / NAME / marked).touch()
        (cache_folder / "theirs" / f"{NAME}.lock").write_text("not empty")
        (cache_folder / f"scratch/{token}.lock").write_text("not empty")
        states = [entry.state for entry in list_entries()]
        assert sorted(states) == ["complete", "other", "other", "other"]
        prune(everything=True)
        assert len(list(cache_folder.rglob("precious"))) == 4

    def test_a_build_without_its_mark_is_damaged(self, cache_folder, build):
        build(1)
        for name, trace in (("a", "sources"), ("b", "")):
            folder = cache_folder / "c" / NAME.replace("x", name)
            (folder / trace).mkdir(parents=True)
        (cache_folder / "c" / NAME.replace("x", "b")).with_suffix(".lock").touch()
        states = [entry.state for entry in list_entries()]
        assert sorted(states) == ["complete", "damaged", "damaged"]

    def test_what_cannot_be_read_keeps_nobody_from_the_rest(self, cache_folder, build, monkeypatch):
        from flashinfer_bench.compile import store

        first, second = build(1), build(2)
        (cache_folder / "other").mkdir()
        real, listed = store.library_file, Path.iterdir

        def refuse(folder, info):
            if folder == first.folder:
                raise PermissionError(13, "Permission denied")
            return real(folder, info)

        def refuse_listing(folder):
            if folder.name == "other":
                raise PermissionError(13, "Permission denied")
            return listed(folder)

        monkeypatch.setattr(store, "library_file", refuse)
        monkeypatch.setattr(Path, "iterdir", refuse_listing)
        assert {entry.path: entry.state for entry in list_entries()} == {
            first.folder: "other",
            second.folder: "complete",
        }
        assert len(prune(everything=True).removed) == 1

    def test_every_state_is_known(self):
        assert set(STATES) == {"complete", "partial", "damaged", "lock", "scratch", "other"}


class TestPrune:
    def test_without_limits_builds_stay(self, build):
        build(1, age=1e8)
        result = prune()
        assert result.removed == ()
        assert result.bytes_left == list_entries()[0].bytes

    def test_by_age(self, build):
        build(1, age=1000)
        build(2, age=10)
        result = prune(older_than=100)
        assert solutions(result.removed) == ["times 1"]
        assert solutions(list_entries()) == ["times 2"]
        assert result.bytes_freed == result.removed[0].bytes

    def test_by_size(self, build):
        for number in (1, 2, 3):
            build(number, age=100 - number)
        each = max(entry.bytes for entry in list_entries())
        result = prune(max_bytes=2 * each)
        assert solutions(result.removed) == ["times 1"]
        assert result.bytes_left <= 2 * each
        assert prune(max_bytes=0).bytes_left == 0

    def test_everything(self, build, cache_folder):
        build(1)
        build(2)
        assert len(prune(everything=True).removed) == 2
        assert [path.name for path in (cache_folder / "c").iterdir()] == [".fib-builds"]
        assert list_entries() == []

    def test_a_dry_run_removes_nothing(self, build):
        artefact = build(1)
        artefact.folder.with_name(f"{artefact.folder.name}.lock").unlink()
        before = sorted(artefact.folder.parent.rglob("*"))
        result = prune(everything=True, dry_run=True)
        assert solutions(result.removed) == ["times 1"]
        assert result.bytes_left == 0
        assert sorted(artefact.folder.parent.rglob("*")) == before

    def test_it_can_be_built_again(self, build):
        build(1)
        prune(everything=True)
        assert build(1).fresh

    def test_what_is_locked_stays(self, build, start):
        artefact = build(1)
        lock = artefact.folder.with_name(f"{artefact.folder.name}.lock")
        holder = start(HOLD, lock)
        assert holder.stdout.readline() == "held\n"
        for dry_run in (True, False):
            result = prune(everything=True, dry_run=dry_run)
            assert result.removed == ()
            assert solutions(result.busy) == ["times 1"]
        assert artefact.library.exists()
        holder.kill()
        holder.wait()
        assert solutions(prune(everything=True).removed) == ["times 1"]

    def test_what_was_used_in_between_stays(self, build, monkeypatch):
        from flashinfer_bench.compile import store

        artefact = build(1, age=1000)
        monkeypatch.setattr(store, "try_lock", use_first(artefact, store.try_lock))
        result = prune(older_than=100)
        assert (result.removed, solutions(result.busy)) == ((), ["times 1"])
        assert artefact.library.exists()

    def test_what_is_damaged_goes_always(self, build):
        build(1).library.unlink()
        assert [entry.state for entry in prune().removed] == ["damaged"]
        assert list_entries() == []

    def test_lock_files_without_a_build_go_unless_they_are_held(self, cache_folder, start):
        free, held = (cache_folder / "x" / f"{NAME}{end}" for end in (".lock", ".building.lock"))
        free.parent.mkdir()
        free.touch()
        holder = start(HOLD, held)
        assert holder.stdout.readline() == "held\n"
        result = prune()
        assert [entry.path for entry in result.removed] == [free]
        assert [entry.path for entry in result.busy] == [held]
        assert held.exists()

    def test_others_are_never_touched(self, cache_folder, tmp_path):
        (cache_folder / "photos" / "holiday").mkdir(parents=True)
        (cache_folder / "photos" / "holiday" / "beach.jpg").write_text("x")
        (cache_folder / "x").mkdir()
        (cache_folder / "x" / "fib_x_0123").mkdir()
        (cache_folder / "x" / NAME).symlink_to(cache_folder / "photos")
        assert prune(everything=True, older_than=0, max_bytes=0).removed == ()
        assert (cache_folder / "photos" / "holiday" / "beach.jpg").exists()
        assert (cache_folder / "x" / "fib_x_0123").exists()

    def test_the_scratch_of_the_dead_goes_and_that_of_the_living_stays(self, cache_folder, start):
        process = start(SCRATCH)
        assert process.stdout.readline() == "there\n"
        own = scratch_folder("mine")
        assert [entry.state for entry in list_entries()] == ["scratch", "scratch"]
        assert len(prune(everything=True).busy) == 2
        process.kill()
        process.wait()
        result = prune()
        assert [entry.state for entry in result.removed] == ["scratch"]
        assert result.bytes_freed == 1000
        assert own.exists()

    def test_what_cannot_be_removed_keeps_no_other_from_going(self, build, monkeypatch):
        from flashinfer_bench.compile import store

        build(1, age=20)
        build(2, age=10)
        real = store.remove_result

        def refuse(folder):
            if "times 1" in (folder / "build.json").read_text():
                raise PermissionError(13, "Permission denied")
            real(folder)

        monkeypatch.setattr(store, "remove_result", refuse)
        with pytest.raises(StorageError, match=r"cannot be removed: .*Permission denied"):
            prune(everything=True)
        assert solutions(list_entries()) == ["times 1"]

    def test_another_folder_than_the_default(self, build, cache_folder, tmp_path):
        build(1)
        assert prune(root=tmp_path, everything=True).removed == ()
        assert len(prune(root=cache_folder, everything=True).removed) == 1


def use_first(artefact, try_lock):
    def lock(path):
        os.utime(artefact.folder / ".complete")
        return try_lock(path)

    return lock


class TestLocksThatArePruned:
    def test_those_who_wait_for_a_file_that_is_removed_take_turns(self, tmp_path, start):
        code = """
import sys, time
from pathlib import Path
from flashinfer_bench.compile.toolkit import build_lock

lock, inside = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(60):
    with build_lock(lock):
        inside.mkdir()
        time.sleep(0.001)
        inside.rmdir()
        lock.unlink(missing_ok=True)
print("done")
"""
        processes = [start(code, tmp_path / "a.lock", tmp_path / "inside") for _ in range(3)]
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert out == "done\n", err

    def test_the_lock_is_on_the_file_that_is_there(self, tmp_path):
        path = tmp_path / "a.lock"
        with build_lock(path):
            path.unlink()
            path.touch()
            with build_lock(path, timeout_s=1):
                pass

"""Listing and pruning the cache."""

import pytest

from fib_build_cache.store import list_entries, prune
from fib_native_toolkit import scratch_folder
from flashinfer_bench.compile.cache import lock_of

NAME = "fib_x_" + "0123456789abcdef" * 4

HOLD = """
import sys, time
from pathlib import Path
from fib_native_toolkit import build_lock

with build_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""

SCRATCH = """
import sys, time
from fib_native_toolkit import scratch_folder
from flashinfer_bench.compile.cache import lock_of

(scratch_folder("x") / "file").write_text("x" * 1000)
print("there", flush=True)
time.sleep(60)
"""


@pytest.fixture
def built(c):
    """A build in the cache."""
    return c.CBuilder().compile(c.definition(), c.solution())


class TestList:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda a: a.library.unlink(),
            lambda a: a.library.write_bytes(b"x"),
            lambda a: (a.folder / ".complete").unlink(),
            lambda a: (a.folder / "build.json").write_text("{}"),
        ],
    )
    def test_damage_is_seen(self, built, damage):
        damage(built)
        assert [entry.state for entry in list_entries()] == ["damaged"]

    def test_a_flipped_bit_is_seen_by_those_who_look_closely(self, built):
        content = bytearray(built.library.read_bytes())
        content[-1] ^= 1
        built.library.write_bytes(content)
        assert [entry.state for entry in list_entries()] == ["complete"]
        assert [entry.state for entry in list_entries(verify=True)] == ["damaged"]

    def test_what_only_has_such_a_name_is_left_alone(self, cache_folder, built):
        token = f"123-{'0' * 32}"
        for path in (f"theirs/{NAME}", f"theirs/{NAME}.partial-abc", f"scratch/{token}"):
            (cache_folder / path).mkdir(parents=True)
            (cache_folder / path / "precious").write_text("x")
        for marked in ("build.json", ".complete"):
            (cache_folder / "theirs" / NAME / marked).touch()
        foreign = cache_folder / "locks" / "theirs" / f"{NAME}.lock"
        foreign.parent.mkdir(parents=True, exist_ok=True)
        foreign.write_text("not empty")
        states = [entry.state for entry in list_entries()]
        assert sorted(states) == ["complete", "other", "other"]
        prune(everything=True)
        assert len(list(cache_folder.rglob("precious"))) == 3
        assert foreign.exists()


class TestPrune:
    def test_what_is_locked_stays(self, built, start):
        lock = lock_of(built.folder)
        holder = start(HOLD, lock)
        assert holder.stdout.readline() == "held\n"
        for dry_run in (True, False):
            result = prune(everything=True, dry_run=dry_run)
            assert result.removed == []
            assert [entry.solution for entry in result.busy] == ["twice"]
        assert built.library.exists()
        holder.kill()
        holder.wait()
        assert [entry.solution for entry in prune(everything=True).removed] == ["twice"]

    def test_lock_files_without_a_build_go_unless_they_are_held(self, cache_folder, start):
        free, held = (
            cache_folder / "locks" / "x" / f"{NAME}{end}" for end in (".lock", ".building.lock")
        )
        free.parent.mkdir(parents=True)
        free.touch()
        holder = start(HOLD, held)
        assert holder.stdout.readline() == "held\n"
        prune(dry_run=True)
        assert free.exists()
        prune()
        assert (free.exists(), held.exists()) == (False, True)

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

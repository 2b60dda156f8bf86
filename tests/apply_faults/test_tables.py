"""Tables against the oracle, from fresh datasets, damaged ones, and from damaged caches."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.apply_faults import channel
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.oracle import Oracle
from tests.apply_faults.problems import SIZES
from tests.apply_faults.world import ELSEWHERE, World, random_world

from flashinfer_bench.apply import ApplyKey
from flashinfer_bench.apply.table import ApplyTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = "This CPU (2 cores)"


def differences(table: ApplyTable, world: World, rng: random.Random) -> Iterator[str]:
    """Yield where the table differs from what the oracle says."""
    oracle = Oracle(world)
    for problem in world.problems.values():
        strange = [tuple(rng.choice((*SIZES, 5)) for _ in problem.variable) for _ in range(5)]
        for values in {*world.recorded(problem.name), *strange}:
            axes = tuple(zip(problem.variable, values, strict=True))
            key = ApplyKey(axes, tuple((name, 1) for name in problem.flags))
            found = table.match_solution(problem.name, key)
            wanted = oracle.table_entry(problem.name, values)
            channel.count(keys=1, wrong=found != wanted)
            if found != wanted:
                yield f"{problem.name} {values}: {found} in place of {wanted}"


def judge(table: ApplyTable, world: World) -> None:
    assert list(differences(table, world, random.Random(0))) == []


# Not pytest's own folder: Hypothesis calls the test many times in one.
def in_fresh_folder(work: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as name:
        before = os.environ["FIB_CACHE_PATH"]
        os.environ["FIB_CACHE_PATH"] = str(Path(name) / "cache")
        try:
            work(Path(name))
        finally:
            os.environ["FIB_CACHE_PATH"] = before


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_table_has_the_best_eligible_solution_of_each_size(seed, problems):
    note(f"seed {seed}")

    def work(folder: Path) -> None:
        world = random_world(random.Random(seed), HERE, problems)
        root = world.write(folder / "dataset")
        judge(ApplyTable.load_or_build(root, hardware=HERE), world)
        judge(ApplyTable.load_or_build(root, hardware=HERE), world)
        elsewhere = random.Random(seed).choice(ELSEWHERE)
        table = ApplyTable.load_or_build(root, hardware=elsewhere)
        mine = {
            made.name
            for record in world.records
            if record.hardware == elsewhere
            for made in [world.solutions.get(record.solution)]
            if made
        }
        taken = {
            choice.solution for one in table.definitions.values() for choice in one.choices.values()
        }
        assert taken <= mine

    in_fresh_folder(work)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.data())
def test_a_torn_or_flipped_trace_file_loses_lines_and_invents_none(seed, data):
    """Nobody wins who was never recorded as passing here; what disproves it may be lost."""

    def work(folder: Path) -> None:
        world = random_world(random.Random(seed), HERE, 1)
        root = world.write(folder / "dataset")
        (file,) = (root / "traces").rglob("*.jsonl")
        content = bytearray(file.read_bytes())
        cut = data.draw(st.integers(0, len(content)), label="cut")
        file.write_bytes(content[:cut])
        table = ApplyTable.load_or_build(root, hardware=HERE)
        may = {
            (each.definition, each.solution)
            for each in world.records
            if each.fault in (None, "disproved") and each.status == "PASSED"
        }
        for name, one in table.definitions.items():
            for choice in one.choices.values():
                assert (name, choice.solution) in may

    in_fresh_folder(work)


# ------------------------------------------------------------------------------------ caches


def cache_files() -> list[Path]:
    folder = Path(os.environ["FIB_CACHE_PATH"]) / "apply"
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass ten seconds: the digest of a file that has just been written is not relied on."""
    later = SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10, time=time.time)
    monkeypatch.setattr("flashinfer_bench.apply.snapshot.time", later)


def world_of(seed: int) -> World:
    """Draw a world whose table is kept: one without a key may have it the next time."""
    world = random_world(random.Random(seed), HERE, 2)
    return replace(world, records=[each for each in world.records if each.fault != "axes"])


def cached_world(folder: Path, seed: int) -> tuple[World, Path]:
    world = world_of(seed)
    root = world.write(folder / f"dataset{seed}")
    judge(ApplyTable.load_or_build(root, hardware=HERE), world)
    return world, root


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return (
        content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    )


def other_digits(content: bytes, rng: random.Random) -> bytes:
    """Still well-formed, if it is text; only other numbers and names."""
    return content.replace(b"good0", b"good1").replace(b"1", b"2")


def renamed_solutions(content: bytes, rng: random.Random) -> bytes:
    return content.replace(b"good", b"erro")


def emptied(content: bytes, rng: random.Random) -> bytes:
    return b""


def noise(content: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(content))


def doubled(content: bytes, rng: random.Random) -> bytes:
    return content + content[:1000]


@pytest.mark.parametrize(
    "damage",
    [truncated, flipped, other_digits, renamed_solutions, emptied, noise, doubled],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.usefixtures("_settled")
def test_a_damaged_cache_changes_nothing(damage, tmp_path):
    files = 0
    for seed in SEEDS[:6]:
        world, root = cached_world(tmp_path, seed)
        rng = random.Random(seed)
        for _ in range(4):
            for file in cache_files():
                content = file.read_bytes()
                if content:
                    files += 1
                    file.write_bytes(damage(content, rng))
            judge(ApplyTable.load_or_build(root, hardware=HERE), world)
    assert files >= 6 * 4 * 2, "nothing was cached: nothing was tested"


@pytest.mark.usefixtures("_settled")
def test_any_byte_of_a_cache_may_flip(tmp_path):
    world, root = cached_world(tmp_path, SEEDS[0])
    sound = {file: file.read_bytes() for file in cache_files()}
    rng = random.Random(7)
    for file, content in sound.items():
        for place in rng.sample(range(len(content)), min(80, len(content))):
            for one, bytes_ in sound.items():
                one.write_bytes(bytes_)
            changed = bytearray(content)
            changed[place] ^= 1 << rng.randrange(8)
            file.write_bytes(bytes(changed))
            judge(ApplyTable.load_or_build(root, hardware=HERE), world)


@pytest.mark.usefixtures("_settled")
def test_the_cache_of_another_dataset_under_our_name(tmp_path):
    for first, second in zip(SEEDS[::2], SEEDS[1::2], strict=True):
        for seed in (first, second):
            shutil.rmtree(os.environ["FIB_CACHE_PATH"], ignore_errors=True)
            cached_world(tmp_path, seed)
            shutil.copytree(os.environ["FIB_CACHE_PATH"], tmp_path / f"cache{seed}")
        theirs = [path for path in (tmp_path / f"cache{first}").rglob("*") if path.is_file()]
        for rotation in range(len(theirs)):
            for file, other in zip(cache_files(), theirs[rotation:] + theirs, strict=False):
                file.write_bytes(other.read_bytes())
            table = ApplyTable.load_or_build(tmp_path / f"dataset{second}", hardware=HERE)
            judge(table, world_of(second))


@pytest.mark.usefixtures("_settled")
def test_the_cache_of_other_hardware_under_our_name(tmp_path):
    world, root = cached_world(tmp_path, SEEDS[0])
    mine = set(cache_files())
    ApplyTable.load_or_build(root, hardware=ELSEWHERE[0])
    theirs = [path.read_bytes() for path in cache_files() if path not in mine]
    assert theirs, "the hardware is not part of the cache's key"
    for file in mine:
        for content in theirs:
            file.write_bytes(content)
            judge(ApplyTable.load_or_build(root, hardware=HERE), world)


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize("keep_times", [False, True])
def test_a_change_of_the_dataset_is_seen_at_once(keep_times, tmp_path):
    """Also one of the same size, with the modification time put back."""
    for seed in SEEDS[:5]:
        world, root = cached_world(tmp_path, seed)
        for _ in range(3):
            before = {path: path.stat() for path in root.rglob("*.jsonl")}
            changed = world.swapped(random.Random(seed))
            time.sleep(0.02)  # more than a tick of the clock of any file system here
            for path in before:
                _rewrite_in_place(path, changed, root)
                if keep_times:
                    os.utime(path, ns=(before[path].st_atime_ns, before[path].st_mtime_ns))
            judge(ApplyTable.load_or_build(root, hardware=HERE), changed)
            world = changed


def _rewrite_in_place(path: Path, world: World, root: Path) -> None:
    """Change a file's content, not its identity."""
    copy = world.write(root.with_name(root.name + "-new"))
    with path.open("r+b") as file:
        file.truncate()
        file.write((copy / path.relative_to(root)).read_bytes())


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder in its way"])
def test_a_cache_that_cannot_be_written(what, tmp_path, monkeypatch):
    place = tmp_path / "strange-cache"
    if what == "nothing":
        place = Path(os.devnull) / "cache"
    elif what == "a file":
        place.write_text("not a folder")
    monkeypatch.setenv("FIB_CACHE_PATH", str(place))
    for seed in SEEDS[:4]:
        world, root = cached_world(tmp_path, seed)
        for file in cache_files() if what == "a folder in its way" else ():
            file.unlink()
            (file / "in-the-way").mkdir(parents=True)
        judge(ApplyTable.load_or_build(root, hardware=HERE), world)

"""Tables against the oracle, from fresh datasets and damaged ones."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, note, settings
from hypothesis import strategies as st
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


@settings(derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_table_has_the_best_eligible_solution_of_each_size(seed, problems):
    note(f"seed {seed}")

    def work(folder: Path) -> None:
        world = random_world(random.Random(seed), HERE, problems)
        root = world.write(folder / "dataset")
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
            solution for one in table.definitions.values() for solution in one.choices.values()
        }
        assert taken <= mine

    in_fresh_folder(work)


@settings(derandomize=True)
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
            for solution in one.choices.values():
                assert (name, solution) in may

    in_fresh_folder(work)

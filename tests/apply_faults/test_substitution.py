"""Random datasets and random calls: who runs is who may, and the results are right."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.apply_faults import channel
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import STYLES, Driver, Tally, enable, winners
from tests.apply_faults.oracle import Verdict
from tests.apply_faults.problems import SIZES, Argument, Problem, make_inputs
from tests.apply_faults.world import FAULTS, Made, Record, World

from flashinfer_bench.apply import ApplyConfig, apply

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.plugin("python")


def sizes_to_call(
    world: World, problem: Problem, rng: random.Random, others: int = 3
) -> list[tuple[int, ...]]:
    """Return the recorded sizes, some neighbours, and a call without any rows."""
    strange = [tuple(rng.choice((*SIZES, 5, 7)) for _ in problem.variable) for _ in range(others)]
    return [*world.recorded(problem.name), *strange, tuple(0 for _ in problem.variable)]


def call_all(driver: Driver, rng: random.Random, styles: Sequence[str] = STYLES) -> Tally:
    """Make every kind of sound call once."""
    tally = Tally()
    for problem in driver.world.problems.values():
        for values in sizes_to_call(driver.world, problem, rng):
            for style in styles:
                tally.add(*driver.call(problem, values, style, rng))
    return tally


def expected_hits(world: World) -> int:
    """Return how many of the recorded sizes have a winner."""
    return len([*winners(Driver(world, apply))])


@pytest.mark.parametrize("seed", SEEDS)
def test_only_eligible_solutions_run_and_the_best_of_them(seed, driven):
    with driven(seed) as (driver, rng):
        tally = call_all(driver, rng)
    assert tally.wrong == []
    assert tally.hits >= len(STYLES) * expected_hits(driver.world)


def test_the_datasets_do_have_winners_and_traps(make_world):
    worlds = [make_world(seed)[0] for seed in SEEDS]
    assert sum(map(expected_hits, worlds)) >= 2 * len(SEEDS)
    faults = {record.fault for world in worlds for record in world.records}
    assert faults == {None, *FAULTS}
    assert sum(record.fault is not None for w in worlds for record in w.records) > 5 * len(SEEDS)


@pytest.mark.parametrize("policy", ["use_def_best", "nearest"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_other_policies_take_only_what_is_usable_for_some_size(seed, policy, driven):
    wrong = []
    with driven(seed, ApplyConfig(on_miss_policy=policy)) as (driver, rng):
        for problem in driver.world.problems.values():
            usable = {
                name
                for values in driver.world.recorded(problem.name)
                for name in driver.oracle.verdict(problem.name, values).allowed
            }
            for values in sizes_to_call(driver.world, problem, rng):
                inputs = make_inputs(problem, problem.sizes(values), rng)
                may = Verdict(frozenset(usable), None)
                text, _ = driver.judged(problem, inputs, "args", may, Verdict.of_strangers)
                wrong += [text] if text else []
    assert wrong == []


@pytest.mark.parametrize("policy", ["use_def_best", "nearest"])
@pytest.mark.parametrize("status", ["INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE"])
def test_who_was_found_wrong_for_a_size_does_not_get_it_by_way_of_another(
    policy, status, here, tmp_path
):
    """It passes at 8 rows, and was recorded as incorrect at 6."""
    problem = Problem(
        "rows", "op", (("N", None), ("C", 4)), (Argument("x0", ("N", "C"), "float32"),), ("y0",)
    )
    world = World(here, {"rows": problem}, {"tempting": Made("tempting", "rows")})
    for rows, verdict in ((8, "PASSED"), (6, status)):
        record = Record("rows", "tempting", (rows,), 1.0, here, verdict, uuid=f"w{rows}")
        world.records.append(record)
    channel.reset(problem)
    with enable(world.write(tmp_path / "dataset"), ApplyConfig(on_miss_policy=policy)):
        driver = Driver(world, apply)
        assert driver.call(problem, (8,), "args", random.Random(1)) == ("", ["tempting"])
        assert driver.call(problem, (6,), "args", random.Random(1)) == ("", [channel.FALLBACK])

"""Solutions that fail, or turn wrong, after some calls: every call has the right result."""

from __future__ import annotations

import pytest
from tests.apply_faults import channel
from tests.apply_faults.channel import FAILING, FALLBACK, MUTATES, WRONG, Behaviour
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import STYLES, Driver, fallback_of, winners
from tests.apply_faults.oracle import Verdict
from tests.apply_faults.problems import Problem, make_inputs

from flashinfer_bench.apply import ApplyConfig, apply

pytestmark = pytest.mark.plugin("python")


def call(driver: Driver, problem: Problem, values: tuple[int, ...], style: str, rng) -> list[str]:
    """Make a call that has to have the right result; return who ran."""
    inputs = make_inputs(problem, problem.sizes(values), rng)
    verdict = driver.oracle.verdict(problem.name, values)
    text, ran = driver.judged(problem, inputs, style, verdict, Verdict.of_strangers)
    assert text == ""
    return ran


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.parametrize("after", [0, 2])
def test_a_failing_solution_is_stepped_in_for_and_then_taken_out(kind, after, driven):
    for seed in SEEDS[:4]:
        with driven(seed, ApplyConfig(max_failures=3)) as (driver, rng):
            for problem, values in winners(driver):
                winner = driver.oracle.verdict(problem.name, values).winner
                channel.calls.clear()
                channel.behaviours.update({winner: Behaviour(kind, after)})
                ran = [call(driver, problem, values, "args", rng) for _ in range(after + 8)]
                assert ran[:after] == [[winner]] * after
                assert ran[after : after + 3] == [[winner, FALLBACK]] * 3
                assert ran[after + 3 :] == [[FALLBACK]] * 5, "it should be out"
                channel.behaviours.clear()


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_strict_raises_and_does_not_hide_it(seed, driven):
    with driven(seed, ApplyConfig(strict=True)) as (driver, rng):
        for problem, values in winners(driver):
            winner = driver.oracle.verdict(problem.name, values).winner
            channel.behaviours[winner] = Behaviour("raise")
            inputs = make_inputs(problem, problem.sizes(values), rng)
            channel.take()
            for _ in range(5):
                with pytest.raises(RuntimeError, match="was told to raise"):
                    apply(problem.name, args=tuple(inputs), fallback=fallback_of(problem))
            assert channel.take() == [winner] * 5
            channel.behaviours.clear()


# ------------------------------------------------------------------------------------- shadow


@pytest.mark.parametrize("kind", [WRONG, MUTATES])
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_shadow_mode_catches_what_is_wrong_in_the_first_calls(seed, after, kind, driven):
    with driven(seed, ApplyConfig(shadow_calls=4)) as (driver, rng):
        for problem, values in winners(driver):
            winner = driver.oracle.verdict(problem.name, values).winner
            channel.calls.clear()
            channel.behaviours[winner] = Behaviour(kind, after)
            ran = [call(driver, problem, values, "args", rng) for _ in range(after + 5)]
            assert all({*each} == {winner, FALLBACK} for each in ran[: after + 1])
            assert ran[after + 1 :] == [[FALLBACK]] * 4, "it should be out"
            channel.behaviours.clear()


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_watching_every_call_nothing_wrong_ever_gets_out(seed, driven):
    with driven(seed, ApplyConfig(shadow_share=1.0)) as (driver, rng):
        for name in driver.world.solutions:
            kind = rng.choice((WRONG, WRONG, MUTATES, *FAILING))
            channel.behaviours[name] = Behaviour(kind, rng.randint(0, 8))
        for _ in range(20):
            for problem, values in winners(driver):
                call(driver, problem, values, rng.choice(STYLES), rng)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_honest_solutions_stay_in_and_run_alone_afterwards(seed, driven):
    with driven(seed, ApplyConfig(shadow_calls=2)) as (driver, rng):
        for problem, values in winners(driver):
            winner = driver.oracle.verdict(problem.name, values).winner
            ran = [call(driver, problem, values, "args", rng) for _ in range(6)]
            assert [{*each} for each in ran] == [{winner, FALLBACK}] * 2 + [{winner}] * 4

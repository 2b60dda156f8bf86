"""Solutions that fail, where that is to be seen."""

from __future__ import annotations

import pytest
from tests.apply_faults import channel
from tests.apply_faults.channel import Behaviour
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import fallback_of, winners
from tests.apply_faults.problems import make_inputs

from flashinfer_bench.apply import ApplyConfig, apply

pytestmark = pytest.mark.plugin("python")


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

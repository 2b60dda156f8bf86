"""Callers that give one tensor for two outputs: no kernel may write to it, so the fallback does."""

from __future__ import annotations

import pytest
import torch
from tests.apply_faults import channel
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import fallback_of, winners
from tests.apply_faults.problems import make_inputs

from flashinfer_bench.apply import apply

pytestmark = pytest.mark.plugin("python")

FEW = SEEDS[:6]


def test_one_tensor_for_two_outputs(driven):
    made = 0
    for seed in FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                if len(problem.outputs) == 1:
                    continue
                made += 1
                inputs = make_inputs(problem, problem.sizes(values), rng)
                output = torch.empty_like(inputs[0])
                args = (*inputs, output, output)
                channel.take()
                apply(problem.name, args=args, fallback=fallback_of(problem))
                assert channel.take() == [channel.FALLBACK]
    assert made >= 1

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashinfer_bench.bench.correctness import OutputSpec, find_problem
from flashinfer_bench.data import EvaluationStatus

SHAPE, DTYPE = EvaluationStatus.INCORRECT_SHAPE, EvaluationStatus.INCORRECT_DTYPE
MATRIX = OutputSpec("y", (2, 3), torch.float32)
ACROSS = OutputSpec("lse", (), torch.float32)
COUNT = OutputSpec("count", (), torch.int32)
FLAG = OutputSpec("flag", (), torch.bool)


def status_of(outputs: list[Any], *specs: OutputSpec, **options: bool) -> Any:
    problem = find_problem(outputs, specs, **options)
    return None if problem is None else problem.status


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([torch.zeros(2, 3)], None),
        ([], SHAPE),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], SHAPE),
        ([torch.zeros(3, 2)], SHAPE),
        ([torch.zeros(2, 3, dtype=torch.float64)], DTYPE),
        ([1.0], SHAPE),
        ([torch.zeros(3, 2, dtype=torch.int32)], SHAPE),
    ],
)
def test_tensors(outputs: list[Any], expected: Any) -> None:
    assert status_of(outputs, MATRIX) == expected


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (ACROSS, 1.5, None),
        (ACROSS, 2, None),
        (ACROSS, float("nan"), None),
        (ACROSS, True, DTYPE),
        (ACROSS, torch.tensor(1.5), None),
        (ACROSS, torch.tensor([1.5]), SHAPE),
        (ACROSS, 10**30, DTYPE),
        (COUNT, 3, None),
        (COUNT, 3.0, DTYPE),
        (COUNT, True, DTYPE),
        (COUNT, 2**63, DTYPE),
        (COUNT, -(2**63), None),
        (FLAG, True, None),
        (FLAG, 1, DTYPE),
        (FLAG, "yes", DTYPE),
        (COUNT, None, DTYPE),
        (OutputSpec("z", (), torch.complex64), 1.0, DTYPE),
    ],
)
def test_scalars(spec: OutputSpec, value: Any, expected: Any) -> None:
    assert status_of([value], spec) == expected

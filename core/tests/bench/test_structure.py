from __future__ import annotations

from typing import Any

import pytest
import torch

from flashinfer_bench.bench.judge.structure import (
    OutputSpec,
    as_tensors,
    find_problem,
    output_specs,
)
from flashinfer_bench.data import EvaluationStatus, TensorSpec

SHAPE, DTYPE = EvaluationStatus.INCORRECT_SHAPE, EvaluationStatus.INCORRECT_DTYPE
MATRIX = OutputSpec("y", (2, 3), torch.float32)
ACROSS = OutputSpec("lse", (), torch.float32)
COUNT = OutputSpec("count", (), torch.int32)
FLAG = OutputSpec("flag", (), torch.bool)


def status_of(outputs: list[Any], *specs: OutputSpec, **options: bool) -> Any:
    problem = find_problem(outputs, specs, **options)
    return None if problem is None else problem.status


def test_specs_follow_the_definition(problems: Any) -> None:
    definition = problems.definition(
        outputs={
            "y": TensorSpec(shape=["n", "k"], dtype="bfloat16"),
            "s": TensorSpec(shape=None, dtype="int32"),
        }
    )
    assert output_specs(definition, {"n": 5}) == (
        OutputSpec("y", (5, 3), torch.bfloat16),
        OutputSpec("s", (), torch.int32),
    )


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([torch.zeros(2, 3)], None),
        ([], SHAPE),
        ([torch.zeros(2, 3), torch.zeros(2, 3)], SHAPE),
        ([torch.zeros(3, 2)], SHAPE),
        ([torch.zeros(6)], SHAPE),
        ([torch.zeros(1, 2, 3)], SHAPE),
        ([torch.zeros(2, 3, dtype=torch.float64)], DTYPE),
        ([torch.zeros(2, 3, dtype=torch.int32)], DTYPE),
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


def test_first_problem_is_told_with_the_output_named() -> None:
    outputs = [torch.zeros(2, 3), torch.zeros(4)]
    problem = find_problem(outputs, [MATRIX, OutputSpec("z", (5,), torch.float32)])
    assert problem is not None
    assert problem.message == "output 'z' has shape [4] instead of [5]"


def test_count_names_the_outputs() -> None:
    problem = find_problem([], [MATRIX, ACROSS])
    assert problem is not None
    assert problem.message == "0 outputs instead of 2 (y, lse)"


@pytest.mark.parametrize(
    ("dtype", "fine"),
    [(torch.float64, True), (torch.float16, True), (torch.int32, False), (torch.complex64, False)],
)
def test_a_reference_may_be_of_the_same_kind(dtype: torch.dtype, fine: bool) -> None:
    found = status_of([torch.zeros(2, 3, dtype=dtype)], MATRIX, exact_dtype=False)
    assert (found is None) is fine


def test_scalars_become_tensors_without_loss() -> None:
    tensor = torch.zeros(2)
    made = as_tensors([tensor, 0.1, 2**62 + 1, True])
    assert made[0] is tensor
    assert [item.dtype for item in made[1:]] == [torch.float64, torch.int64, torch.bool]
    assert [item.item() for item in made[1:]] == [0.1, 2**62 + 1, True]

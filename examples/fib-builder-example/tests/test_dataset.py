"""The solutions of the dataset behave as described."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flashinfer_bench.compile import reference_solution
from flashinfer_bench.compile.toolkit import load_python
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import BuildError
from flashinfer_bench.tensors import generate_inputs

DATASET = Path(__file__).parents[1] / "dataset"
TRACES = TraceSet.from_path(str(DATASET))
DEFINITION = TRACES.definitions["rmsnorm_bf16_h256"]
SOLUTIONS = {solution.name: solution for solution in TRACES.solutions[DEFINITION.name]}
WORKLOADS = [trace.workload for trace in TRACES.workloads[DEFINITION.name]]
RIGHT = [name for name in SOLUTIONS if not name.endswith("_wrong_signature")]


@pytest.fixture
def reference():
    """The definition's reference, as a function."""
    loaded = load_python(DEFINITION, reference_solution(DEFINITION), prefix="reference")
    yield loaded.function
    loaded.cleaner()


def test_there_are_right_ones_and_a_wrong_one():
    assert (len(RIGHT), len(SOLUTIONS)) == (2, 3)
    languages = {solution.spec.language for solution in SOLUTIONS.values()}
    assert languages == {"c"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.axes))
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_ones_are_right(build, reference, name, workload):
    inputs = generate_inputs(DEFINITION, workload, seed=1, root=DATASET, device="cpu")
    output = build(SOLUTIONS[name], DEFINITION).call_value_returning(*inputs)
    torch.testing.assert_close(output, reference(*inputs), atol=2e-2, rtol=2e-2)


def test_the_wrong_one_does_not_compile(build):
    with pytest.raises(BuildError, match="conflicting types for") as caught:
        build(SOLUTIONS["rmsnorm_c_wrong_signature"], DEFINITION)
    assert "int64_t batch_size" in caught.value.hint

"""Calls with tensors that match the definition, and with tensors that do not."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def run(build, make_solution):
    """The built solution."""
    return build(make_solution())


@pytest.fixture
def out():
    """Where results go."""
    return torch.full((3, 8), float("nan"))


def expected(inputs):
    x, y, scale = inputs
    return (x + y) * scale


def test_it_writes_into_the_outputs(run, inputs, out):
    assert run(*inputs, out) is None
    assert torch.equal(out, expected(inputs))


def test_inputs_that_are_not_contiguous(run, inputs, out):
    x, y, scale = inputs
    wide = torch.zeros(3, 16)
    wide[:, ::2] = x
    run(wide[:, ::2], y.t().contiguous().t(), scale, out)
    assert torch.equal(out, expected(inputs))


def test_an_output_that_is_not_contiguous(run, inputs):
    wide = torch.zeros(3, 16)
    run(*inputs, wide[:, 1::2])
    assert torch.equal(wide[:, 1::2], expected(inputs))
    assert torch.equal(wide[:, ::2], torch.zeros(3, 8))


@pytest.mark.parametrize("scale", [2, True, torch.tensor(2.0), torch.tensor([2])])
def test_a_scalar_may_be_any_number(run, inputs, out, scale):
    x, y, _ = inputs
    run(x, y, scale, out)
    assert torch.equal(out, (x + y) * float(scale))


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_arguments(run, inputs, out, count):
    with pytest.raises(TypeError, match=f"takes 4 arguments, got {count}"):
        run(*[*inputs, out, out][:count])


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(3, 8, dtype=torch.float64),
        torch.zeros(3, 8, dtype=torch.int32),
        torch.zeros(3, 8, device="meta"),
        [[0.0] * 8] * 3,
        None,
    ],
    ids=["float64", "int32", "meta", "list", "none"],
)
def test_what_is_no_such_tensor_never_reaches_c(run, inputs, out, wrong):
    with pytest.raises(TypeError, match="'y' must be a tensor of torch.float32 on the CPU"):
        run(inputs[0], wrong, inputs[2], out)


@pytest.mark.parametrize("shape", [(8,), (1, 3, 8), (3, 7), (2, 8), (4, 8), ()])
def test_a_shape_that_does_not_fit(run, inputs, out, shape):
    with pytest.raises(ValueError, match=r"'y' has shape .*, not \[tokens, hidden\] with"):
        run(inputs[0], torch.zeros(shape), inputs[2], out)

"""Callers whose tensors are not what was recorded: the fallback gets them, untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import pytest
import torch
from tests.apply_faults import channel
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import fallback_of, strided, winners
from tests.apply_faults.problems import expected, make_inputs, make_outputs

from flashinfer_bench.apply import apply

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.apply_faults.drive import Driver
    from tests.apply_faults.problems import Problem

pytestmark = pytest.mark.plugin("python")

Inputs = list[Any]


class Sub(torch.Tensor):
    """A tensor that may do anything in its own way."""


def tensors_of(problem: Problem) -> list[int]:
    return [place for place, each in enumerate(problem.inputs) if each.axes is not None]


def other_dtype(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    place = rng.choice(tensors_of(problem))
    return replaced(inputs, place, inputs[place].to(torch.float64))


def transposed(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    first = inputs[0]
    turned = first.transpose(0, -1).contiguous().transpose(0, -1)
    return None if turned.is_contiguous() else replaced(inputs, 0, turned)


def parameter(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    places = [place for place in tensors_of(problem) if inputs[place].is_floating_point()]
    if not places:
        return None
    place = rng.choice(places)
    return replaced(inputs, place, torch.nn.Parameter(inputs[place].clone()))


def subclass(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    place = rng.choice(tensors_of(problem))
    return replaced(inputs, place, inputs[place].as_subclass(Sub))


def more_dimensions(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    return replaced(inputs, 0, inputs[0].unsqueeze(0))


def on_meta(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    places = tensors_of(problem)
    return [value.to("meta") if place in places else value for place, value in enumerate(inputs)]


def fewer_rows(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    """Two inputs that disagree about a size; the sum broadcasts all the same."""
    for place, each in enumerate(problem.inputs[1:], 1):
        if each.axes and inputs[place].shape[0] > 1:
            return replaced(inputs, place, inputs[place][:1].contiguous())
    return None


def tensor_for_scalar(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    for place, each in enumerate(problem.inputs):
        if each.axes is None:
            return replaced(inputs, place, torch.tensor(inputs[place]))
    return None


def other_flag(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    """A number that says what attention is to do, and was recorded as 1."""
    for place, each in enumerate(problem.inputs):
        if each.name in problem.flags:
            return replaced(inputs, place, 2)
    return None


def float_for_scalar(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    for place, each in enumerate(problem.inputs):
        if each.axes is None and each.dtype == "int32":
            return replaced(inputs, place, 1.5)
    return None


def other_constant(problem: Problem, inputs: Inputs, rng: random.Random) -> Optional[Inputs]:
    sizes = dict(zip(problem.inputs[0].axes or (), inputs[0].shape, strict=True))
    constant = next(name for name, size in problem.axes if size is not None)
    return make_inputs(problem, {**sizes, constant: sizes[constant] + 1}, rng)


FEW = SEEDS[:6]
WITH_FLAGS = (2072, 2125)  # their worlds have flags, and winners

FAULTS = (
    other_dtype,
    strided,
    transposed,
    parameter,
    subclass,
    more_dimensions,
    on_meta,
    fewer_rows,
    tensor_for_scalar,
    other_flag,
    float_for_scalar,
    other_constant,
)


def replaced(inputs: Inputs, place: int, value: Any) -> Inputs:
    return [*inputs[:place], value, *inputs[place + 1 :]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_fallback_gets_what_no_kernel_was_recorded_for(fault, driven):
    wrong, made = [], 0
    for seed in WITH_FLAGS if fault is other_flag else FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                # Sound, unsound, sound: what a guard has seen before must not make it careless.
                for unsound in (False, True, False, True):
                    text, tried = once(driver, problem, values, fault if unsound else None, rng)
                    wrong += [text] if text else []
                    made += tried and unsound
    assert wrong == []
    assert made >= 3, "too few calls could be made unsound to say anything"


def once(
    driver: Driver,
    problem: Problem,
    values: tuple[int, ...],
    fault: Optional[Callable[..., Optional[Inputs]]],
    rng: random.Random,
) -> tuple[str, bool]:
    style = rng.choice(("args", "kwargs"))
    if fault is None:
        return driver.call(problem, values, style, rng)[0], True
    spoilt = fault(problem, make_inputs(problem, problem.sizes(values), rng), rng)
    if spoilt is None:
        return "", False
    return driver.unsound(problem, spoilt, style)[0], True


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd_gradients_do_not_matter(mode, driven):
    wrong, hits = [], 0
    for seed in FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                spoilt = parameter(problem, make_inputs(problem, problem.sizes(values), rng), rng)
                if spoilt is None:
                    continue
                verdict = driver.oracle.verdict(problem.name, values)
                with mode():
                    text, ran = driver.judged(problem, spoilt, "args", verdict)
                wrong += [text] if text else []
                hits += ran == [verdict.winner]
                wrong += [driver.unsound(problem, spoilt, "args")[0]]
    assert [text for text in wrong if text] == []
    assert hits >= 3


# ------------------------------------------------------------------------------------- outputs


def same_memory_as_input(inputs: Inputs, outputs: Inputs) -> bool:
    outputs[0] = inputs[0]
    return True


def overlapping_input(inputs: Inputs, outputs: Inputs) -> bool:
    """The output begins one element after the input."""
    count = inputs[0].numel()
    if count < 2:
        return False
    room = torch.empty(count + 1, dtype=inputs[0].dtype)
    shape = inputs[0].shape
    room[:count].view(shape).copy_(inputs[0])
    inputs[0], outputs[0] = room[:count].view(shape), room[1:].view(shape)
    return True


def strided_output(inputs: Inputs, outputs: Inputs) -> bool:
    outputs[0] = torch.stack([outputs[0]] * 2, -1)[..., 0]
    return not outputs[0].is_contiguous()


def wider_output(inputs: Inputs, outputs: Inputs) -> bool:
    outputs[0] = outputs[0].to(torch.float64)
    return True


def output_of_a_subclass(inputs: Inputs, outputs: Inputs) -> bool:
    outputs[0] = outputs[0].as_subclass(Sub)
    return True


OUTPUTS = (
    same_memory_as_input,
    overlapping_input,
    strided_output,
    wider_output,
    output_of_a_subclass,
)


@pytest.mark.parametrize("fault", OUTPUTS, ids=lambda fault: fault.__name__)
def test_the_fallback_gets_outputs_that_no_kernel_may_write_to(fault, driven):
    made = 0
    for seed in FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                sizes = problem.sizes(values)
                inputs, outputs = make_inputs(problem, sizes, rng), make_outputs(problem, sizes)
                if not fault(inputs, outputs):
                    continue
                made += 1
                right = expected(problem, inputs)
                channel.take()
                apply(problem.name, args=(*inputs, *outputs), fallback=fallback_of(problem))
                assert channel.take() == [channel.FALLBACK], problem.name
                assert torch.equal(
                    outputs[0].as_subclass(torch.Tensor).to(right[0].dtype), right[0]
                )
    assert made >= 3


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


def test_a_wrong_number_of_arguments_is_told_and_nobody_runs(driven):
    with driven(SEEDS[0]) as (driver, _):
        for problem in driver.world.problems.values():
            count = len(problem.inputs) + len(problem.outputs)
            channel.take()
            with pytest.raises(ValueError, match=rf"{len(problem.inputs)}.*{count}"):
                apply(problem.name, args=(1,) * (count + 1), fallback=fallback_of(problem))
            assert channel.take() == []

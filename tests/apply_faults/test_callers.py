"""Callers whose tensors are not what was recorded: the fallback gets them, untouched."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.apply_faults import channel
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.drive import fallback_of, strided, winners
from tests.apply_faults.problems import expected, make_inputs, make_outputs

from flashinfer_bench.apply import apply

pytestmark = pytest.mark.plugin("python")


class Sub(torch.Tensor):
    """A tensor that may do anything in its own way."""


def tensors_of(problem, inputs):
    return [place for place, each in enumerate(problem.inputs) if each.axes is not None]


def floats_of(problem, inputs):
    return [place for place in tensors_of(problem, inputs) if inputs[place].is_floating_point()]


def first_of(problem, inputs):
    return [0]


def broadcast_of(problem, inputs):
    """Return the inputs that may disagree about a size; the sum broadcasts all the same."""
    tensors = tensors_of(problem, inputs)[1:]
    return [place for place in tensors if inputs[place].shape[:1] > (1,)]


def scalars_of(problem, inputs):
    return [place for place, each in enumerate(problem.inputs) if each.axes is None]


def integers_of(problem, inputs):
    scalars = scalars_of(problem, inputs)
    return [place for place in scalars if problem.inputs[place].dtype == "int32"]


def flags_of(problem, inputs):
    """Return the numbers that say what attention is to do, and were recorded as 1."""
    return [place for place, each in enumerate(problem.inputs) if each.name in problem.flags]


def parameter(value):
    return torch.nn.Parameter(value.clone())


def gradient(problem, inputs, rng):
    return one_replaced(floats_of, parameter, problem, inputs, rng)


def on_meta(problem, inputs, rng):
    return [value.to("meta") if hasattr(value, "to") else value for value in inputs]


def other_constant(problem, inputs, rng):
    sizes = dict(zip(problem.inputs[0].axes or (), inputs[0].shape, strict=True))
    constant = next(name for name, size in problem.axes if size is not None)
    return make_inputs(problem, {**sizes, constant: sizes[constant] + 1}, rng)


def transposed(problem, inputs, rng):
    turned = inputs[0].transpose(0, -1).contiguous().transpose(0, -1)
    return None if turned.is_contiguous() else [turned, *inputs[1:]]


def one_replaced(places_of, change, problem, inputs, rng):
    """Return the inputs, one of some of them changed; None if there is none of these."""
    places = places_of(problem, inputs)
    if not places:
        return None
    place = rng.choice(places)
    return [*inputs[:place], change(inputs[place]), *inputs[place + 1 :]]


FEW = SEEDS[:6]
WITH_FLAGS = (2072, 2125)  # their worlds have flags, and winners

FAULTS = {
    "other dtype": partial(one_replaced, tensors_of, torch.Tensor.double),
    "subclass": partial(one_replaced, tensors_of, lambda value: value.as_subclass(Sub)),
    "parameter": gradient,
    "more dimensions": partial(one_replaced, first_of, lambda value: value.unsqueeze(0)),
    "fewer rows": partial(one_replaced, broadcast_of, lambda value: value[:1].contiguous()),
    "tensor for scalar": partial(one_replaced, scalars_of, torch.tensor),
    "float for scalar": partial(one_replaced, integers_of, lambda _: 1.5),
    "other flag": partial(one_replaced, flags_of, lambda _: 2),
    "strided": strided,
    "transposed": transposed,
    "on meta": on_meta,
    "other constant": other_constant,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fallback_gets_what_no_kernel_was_recorded_for(fault, driven):
    wrong, made = [], 0
    for seed in WITH_FLAGS if fault == "other flag" else FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                # Sound, unsound, sound: what a guard has seen before must not make it careless.
                for _ in range(2):
                    style = rng.choice(("args", "kwargs"))
                    wrong.append(driver.call(problem, values, style, rng)[0])
                    inputs = make_inputs(problem, problem.sizes(values), rng)
                    spoilt = FAULTS[fault](problem, inputs, rng)
                    if spoilt is not None:
                        wrong.append(driver.unsound(problem, spoilt, style)[0])
                        made += 1
    assert [text for text in wrong if text] == []
    assert made >= 3, "too few calls could be made unsound to say anything"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd_gradients_do_not_matter(mode, driven):
    wrong, hits = [], 0
    for seed in FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                spoilt = gradient(problem, make_inputs(problem, problem.sizes(values), rng), rng)
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


def overlapping(inputs, output):
    """The output begins one element after the input."""
    count, shape = inputs[0].numel(), inputs[0].shape
    room = torch.empty(count + 1, dtype=inputs[0].dtype)
    room[:count].view(shape).copy_(inputs[0])
    inputs[0] = room[:count].view(shape)
    return room[1:].view(shape) if count > 1 else None


def with_gaps(inputs, output):
    spread = torch.stack([output] * 2, -1)[..., 0]
    return None if spread.is_contiguous() else spread


OUTPUTS = {
    "the same memory as an input": lambda inputs, output: inputs[0],
    "overlapping an input": overlapping,
    "strided": with_gaps,
    "wider": lambda inputs, output: output.double(),
    "subclass": lambda inputs, output: output.as_subclass(Sub),
}


@pytest.mark.parametrize("fault", OUTPUTS)
def test_the_fallback_gets_outputs_that_no_kernel_may_write_to(fault, driven):
    made = 0
    for seed in FEW:
        with driven(seed) as (driver, rng):
            for problem, values in winners(driver):
                sizes = problem.sizes(values)
                inputs, outputs = make_inputs(problem, sizes, rng), make_outputs(problem, sizes)
                outputs[0] = OUTPUTS[fault](inputs, outputs[0])
                if outputs[0] is None:
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

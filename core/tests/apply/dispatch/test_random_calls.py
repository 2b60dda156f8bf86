"""Random calls, ordinary and odd: who answers them, against an oracle that shares no code."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

# ----------------------------------------------------------------------------------- the oracle

SCALARS = {"float": float, "int": int, "bool": bool}


def may_substitute(definition, args, *, device="cpu", mutated=()):
    """Return whether a solution may be called with `args`: inputs, and outputs if there are more.

    It says so slowly and plainly, and shares nothing with core.

    Parameters
    ----------
    definition : Definition
        What is called.
    args : sequence
        As many as there are inputs, or inputs and outputs.
    device : str
        Kind of device that the table is for.
    mutated : sequence of str
        Inputs that are written to.
    """
    inputs = list(definition.inputs.items())
    into = len(args) > len(inputs)
    operands = inputs + (list(definition.outputs.items()) if into else [])
    tensors, written = [], []
    for index, ((name, spec), value) in enumerate(zip(operands, args, strict=True)):
        is_output = index >= len(inputs)
        if spec.shape is None and not is_output:
            if type(value) is not _scalar(spec):
                return False
            continue
        if not _is_plain_tensor(value):
            return False
        if value.device.type != device or str(value.dtype) != f"torch.{spec.dtype.torch_name}":
            return False
        tensors.append(value)
        if is_output or name in mutated:
            written.append(value)
    if not tensors:
        return False
    return (
        _axes_fit(definition, operands, args, len(inputs))
        and len({str(tensor.device) for tensor in tensors}) == 1
        and all(tensor.is_contiguous() for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and not _in_some_mode()
        and (torch.is_inference_mode_enabled() or not any(each.is_inference() for each in written))
        and not _share_memory(tensors, written)
    )


def _scalar(spec):
    name = str(spec.dtype.value)
    return SCALARS["float" if "float" in name else "int" if "int" in name else "bool"]


def _is_plain_tensor(value):
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return not (
        value.is_nested
        or value.layout is not torch.strided
        or value.is_neg()
        or value.is_conj()
        or value._is_zerotensor()
        or value.is_quantized
        or torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _in_some_mode():
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    return bool(
        torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or _len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
        or forward_ad._current_level >= 0
    )


def _axes_fit(definition, operands, args, inputs):
    sizes = dict(definition.const_axes)
    for index, ((_, spec), value) in enumerate(zip(operands, args, strict=True)):
        if spec.shape is None and index < inputs:
            continue
        declared = spec.shape or []
        if value.dim() != len(declared):
            return False
        for entry, size in zip(declared, value.shape, strict=True):
            wanted = int(entry) if entry.isdigit() else sizes.setdefault(entry, size)
            if wanted != size:
                return False
    return True


def _share_memory(tensors, written):
    """Return whether a tensor that is written has a byte in common with another one."""
    for left, right in combinations(tensors, 2):
        if any(each is left or each is right for each in written) and _bytes(left) & _bytes(right):
            return True
    return False


def _bytes(tensor):
    start = tensor.data_ptr()
    return set(range(start, start + tensor.numel() * tensor.element_size()))


# --------------------------------------------------------------------------------- random calls


class Own(torch.Tensor):
    """A subclass, such as those that compute something else."""


def fresh(spec, sizes, dtype=None):
    shape = [int(entry) if entry.isdigit() else sizes[entry] for entry in spec.shape or []]
    return torch.zeros(shape, dtype=dtype or spec.dtype.to_torch())


def odd_strides(tensor):
    """The same numbers; where a dimension has one element or the tensor none, with odd strides."""
    strides = [
        step * 3 + 1 if size == 1 or not tensor.numel() else step
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(tensor.shape, strides)


def apart(tensor):
    """The same shape, not contiguous where that is possible."""
    if tensor.dim() == 0:
        return tensor
    return torch.zeros((*tensor.shape[:-1], tensor.shape[-1] * 2), dtype=tensor.dtype)[..., ::2]


def other_dtype(tensor):
    return tensor.to(torch.int32 if tensor.is_floating_point() else torch.float32)


def grad(tensor):
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def inference(tensor):
    with torch.inference_mode():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)


# What may become of an argument: each is a function of (a good tensor, the arguments before it).
ODD = {
    "other dtype": lambda t, _: other_dtype(t),
    "double": lambda t, _: t.double(),
    "more rows": lambda t, _: torch.cat([t, t]) if t.dim() else t,
    "one row": lambda t, _: t[:1].clone() if t.dim() else t,
    "no row": lambda t, _: t[:0].clone() if t.dim() else t,
    "one more dimension": lambda t, _: t.unsqueeze(0),
    "one dimension less": lambda t, _: t.reshape(-1),
    "last size": lambda t, _: torch.zeros((*t.shape[:-1], 5), dtype=t.dtype),
    "transposed": lambda t, _: t.t().contiguous().t() if t.dim() == 2 else apart(t),
    "slice": lambda t, _: apart(t),
    "expanded": lambda t, _: t[:1].expand(t.shape) if t.dim() and t.shape[0] else t,
    "odd strides": lambda t, _: odd_strides(t),
    "offset": lambda t, _: torch.cat([t.reshape(-1), t.reshape(-1)])[t.numel() :].view(t.shape),
    "meta": lambda t, _: t.to("meta"),
    "requires_grad": lambda t, _: grad(t),
    "parameter": lambda t, _: torch.nn.Parameter(t, requires_grad=False),
    "wanting parameter": lambda t, _: grad(torch.nn.Parameter(t, requires_grad=False)),
    "subclass": lambda t, _: t.as_subclass(Own),
    "none": lambda t, _: None,
    "numpy": lambda t, _: t.numpy() if t.dtype != torch.bfloat16 else None,
    "list": lambda t, _: t.tolist(),
    "number": lambda t, _: 3,
    "numpy number": lambda t, _: np.float32(3),
    "negated": lambda t, _: torch._neg_view(t) if t.is_floating_point() else t,
    "zeros": lambda t, _: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "sparse": lambda t, _: t.to_sparse() if t.dim() else t,
    "of inference mode": lambda t, _: inference(t),
    "detached": lambda t, _: t.detach(),
    "the same object": lambda t, before: before[0] if before else t,
    "the same memory": lambda t, before: same_memory(t, before),
    "overlapping": lambda t, before: overlapping(t, before),
}
# What else may be passed for a scalar.
ODD_SCALARS = [1, 1.5, True, None, "1", np.float32(1.0), np.float64(1.0), torch.tensor(1.0), 2**70]


def same_memory(tensor, before):
    """Return a view of the tensor before; one that is sparse has none."""
    dense = before and before[-1].layout is torch.strided
    return before[-1].view(before[-1].shape) if dense else tensor


def overlapping(tensor, before):
    """A tensor that begins in the middle of the memory of an earlier one, if that is possible."""
    for other in before:
        if other.dtype == tensor.dtype and other.is_contiguous() and other.numel() > 1:
            memory = other.view(-1)
            if memory.numel() >= tensor.numel():
                return memory[memory.numel() - tensor.numel() :].view(tensor.shape)
    return tensor


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "flops": lambda: FlopCounterMode(display=False),
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "tangents": forward_ad.dual_level,
    "device": lambda: torch.device("cpu"),
}

sizes = st.sampled_from([0, 1, 2, 3, 7])
call = st.fixed_dictionaries(
    {
        "n": sizes,
        "m": sizes,
        "into": st.booleans(),
        "odd": st.dictionaries(st.integers(0, 5), st.sampled_from(sorted(ODD)), max_size=2),
        "scalar": st.one_of(st.just(0.5), st.just(0.5), st.sampled_from(ODD_SCALARS)),
        "by_name": st.booleans(),
        "modes": st.lists(st.sampled_from(sorted(MODES)), max_size=2, unique=True),
    }
)


def arguments(definition, recipe):
    """Make the arguments that a recipe asks for."""
    made, tensors = [], []
    axes = {"n": recipe["n"], "m": recipe["m"], **definition.const_axes}
    operands = list(definition.inputs.values())
    count = len(operands)
    operands += list(definition.outputs.values()) if recipe["into"] else []
    for index, spec in enumerate(operands):
        if spec.shape is None and index < count:
            made.append(recipe["scalar"])
            continue
        tensor = fresh(spec, axes)
        if index in recipe["odd"]:
            tensor = ODD[recipe["odd"][index]](tensor, tensors)
        made.append(tensor)
        if isinstance(tensor, torch.Tensor):
            tensors.append(tensor)
    return made


def all_is_what_the_oracle_says(made, calls, mutated=()):
    for recipe in calls:
        for _ in range(2):  # the second time the pattern is known
            is_what_the_oracle_says(made, recipe, mutated)


def is_what_the_oracle_says(made, recipe, mutated):
    definition, solution, original = made.definition, made.solution, made.original
    args = arguments(definition, recipe)
    with ExitStack() as stack:
        for mode in recipe["modes"]:
            stack.enter_context(MODES[mode]())
        wanted = may_substitute(definition, args, mutated=mutated)
        ran, fell = solution.calls, len(original.calls)
        if recipe["by_name"]:
            names = [*definition.inputs, *definition.outputs]
            made(**dict(zip(names, args, strict=False)))
        else:
            made(*args)
    answered = (solution.calls - ran, len(original.calls) - fell)
    assert answered == ((1, 0) if wanted else (0, 1)), (answered, wanted, recipe, args)
    if wanted:
        return
    seen_args, seen_kwargs = original.calls.pop()
    seen = [*seen_args, *seen_kwargs.values()]
    assert all(left is right for left, right in zip(seen, args, strict=True))


VECTOR = {"shape": ["m"], "dtype": "int32"}
MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


def answer(*inputs):
    """Return outputs of the right shapes for the inputs of `MIXED`."""
    x, _, counts, _ = inputs
    return torch.zeros(x.shape), torch.zeros(counts.shape, dtype=torch.int32)


@pytest.fixture
def mixed(bench, make_definition, guards):
    """Matrices, a vector of another type, a scalar; two outputs."""
    inputs = {
        "x": MATRIX,
        "w": {"shape": ["k"], "dtype": "float32"},
        "counts": VECTOR,
        "scale": {"shape": None, "dtype": "float32"},
    }

    def make(**written):
        definition = make_definition(inputs, {"y": {**MATRIX, **written}, "total": VECTOR})
        return bench(answer, definition)

    return make


of_any_kind = given(calls=st.lists(call, min_size=1, max_size=12))
thorough = settings(max_examples=100)


@thorough
@of_any_kind
def test_mixed_calls_are_substituted_when_they_may_be(mixed, calls):
    all_is_what_the_oracle_says(mixed(), calls)


@thorough
@of_any_kind
def test_calls_of_two_tensors_are_substituted_when_they_may_be(bench, guards, calls):
    made = bench(lambda x, y: torch.zeros(x.shape), key_builder=None)
    all_is_what_the_oracle_says(made, calls)


@thorough
@of_any_kind
def test_calls_that_write_to_an_input_share_no_memory(mixed, calls):
    all_is_what_the_oracle_says(mixed(param="x"), calls, mutated=("x",))

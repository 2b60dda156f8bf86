"""Says slowly and plainly whether a substitute may take a call; shares nothing with core."""

from __future__ import annotations

from itertools import combinations

import torch
from torch.autograd import forward_ad

SCALARS = {"float": float, "int": int, "bool": bool}


def may_substitute(definition, args, *, device="cpu", mutated=()):
    """Return whether a solution may be called with `args`: inputs, and outputs if there are more.

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

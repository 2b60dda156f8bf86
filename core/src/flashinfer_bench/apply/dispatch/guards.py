"""The guard of a definition in Python: whether a substitute may take a call, and why not.

It is the authority on that. What is quicker (`recognition`) only recognises calls like those that
it has let through.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.routing.generated import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.apply.dispatch.layout import Layout, Operand
    from flashinfer_bench.apply.dispatch.ordinary import Devices

    Guard = Callable[..., Optional[str]]


def overlap(left: Any, right: Any) -> bool:
    """Return whether two contiguous tensors have a byte in common."""
    start, other = left.data_ptr(), right.data_ptr()
    stop = start + left.numel() * left.element_size()
    other_stop = other + right.numel() * right.element_size()
    return bool(max(start, other) < min(stop, other_stop))


def make_guard(layout: Layout, devices: Devices, *, into: bool, strided: bool = False) -> Guard:
    """Return the guard of a definition.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    devices : Devices
        Where tensors may be.
    into : bool
        Whether outputs follow the inputs.
    strided : bool
        Whether inputs may have gaps between their elements, and their axes in any order.

    Returns
    -------
    callable
        Of as many arguments as the call has; returns None, or a reason of `stats`. Asks nothing
        of an argument whose type is wrong, and raises nothing unless torch does.
    """
    asked, inputs = facts(), len(layout.inputs)
    operands = [*layout.inputs, *(layout.outputs if into else ())]
    # A scalar output that is passed in is a tensor without dimensions.
    tensors = {
        f"a{index}": operand
        for index, operand in enumerate(operands)
        if operand.shape is not None or index >= inputs
    }
    written = {f"a{index}" for index in (*layout.mutated, *range(inputs, len(operands)))}
    # Cheap and safe questions first.
    body = [*_types(operands, tensors)]
    if tensors:
        body += [*_places(tensors), *_shapes(tensors), *_rest(tensors, written, strided)]
    else:
        body.append(f"return {stats.DEVICE!r}")  # nothing says where it is to be computed
    arguments = ", ".join(f"a{index}" for index in range(len(operands)))
    source = "\n    ".join([f"def guard({arguments}):", *body]) + "\n"
    namespace = {
        **{f"dtype_{name}": operand.dtype for name, operand in tensors.items()},
        "Tensor": asked.tensor,
        "Parameter": asked.parameter,
        "keys": asked.keys,
        "number": asked.number,
        "included": asked.included,
        "excluded": asked.excluded,
        "unusual": ~asked.usual,
        "masked": asked.masked,
        "forward": asked.forward,
        "grad_enabled": asked.grad_enabled,
        "inference": asked.inference,
        "keys_on": devices.keys_on,
        "overlap": overlap,
    }
    return compile_source(source, "guard", namespace, f"guard of {layout.name!r}")


def _refuse(condition: str, reason: str) -> str:
    return f"if {condition}: return {reason!r}"


def _types(operands: list[Operand], tensors: dict[str, Operand]) -> list[str]:
    found = []
    for index, operand in enumerate(operands):
        name = f"a{index}"
        wrong = f"type({name}) is not {operand.scalar.__name__}"
        if name in tensors:
            wrong = f"type({name}) is not Tensor and type({name}) is not Parameter"
        found += [f"# {name}: {operand.name!r}", _refuse(wrong, stats.TYPE)]
    return found


def _places(tensors: dict[str, Operand]) -> list[str]:
    first, *others = tensors
    elsewhere = ["ordinary is None", *(f"{name}.device != device" for name in others)]
    odd = [
        "number(included()) & unusual",
        "number(excluded()) & masked != masked",
        "forward._current_level >= 0",
        *(f"number(keys({name})) not in ordinary" for name in tensors),
    ]
    return [
        f"device = {first}.device",
        "ordinary = keys_on(device)",
        _refuse(" or ".join(elsewhere), stats.DEVICE),
        _refuse(" or ".join(odd), stats.MODE),
    ]


def _shapes(tensors: dict[str, Operand]) -> list[str]:
    found: list[str] = []
    known: dict[str, str] = {}
    for name, operand in tensors.items():
        shape = operand.shape or ()
        wrong = [f"len(shape) != {len(shape)}"]
        fresh: dict[str, str] = {}
        for dimension, size in enumerate(shape):
            here = f"shape[{dimension}]"
            if isinstance(size, int):
                wrong.append(f"{here} != {size}")
            elif size in known or size in fresh:
                wrong.append(f"{here} != {known.get(size) or fresh[size]}")
            else:
                fresh[size] = here
        found += [
            _refuse(f"{name}.dtype is not dtype_{name}", stats.DTYPE),
            f"shape = {name}.shape",
            _refuse(" or ".join(wrong), stats.SHAPE),
        ]
        for size, here in fresh.items():
            known[size] = f"n{len(known)}"
            found.append(f"{known[size]} = {here}")
    return found


def _rest(tensors: dict[str, Operand], written: set[str], strided: bool) -> list[str]:
    # Elements that share memory, as those of an expanded tensor do, are another matter.
    question = "0 in {0}.stride()" if strided else "not {0}.is_contiguous()"
    loose = " or ".join(question.format(name) for name in tensors)
    graded = " or ".join(f"{name}.requires_grad" for name in tensors)
    found = [_refuse(loose, stats.LAYOUT), _refuse(f"grad_enabled() and ({graded})", stats.GRAD)]
    if written:  # torch itself refuses such writes
        made = " or ".join(f"{name}.is_inference()" for name in sorted(written))
        found.append(_refuse(f"({made}) and not inference()", stats.MODE))
    # What is written may share memory with nothing else.
    pairs = [pair for pair in combinations(tensors, 2) if not written.isdisjoint(pair)]
    if pairs:
        shared = " or ".join(f"overlap({left}, {right})" for left, right in pairs)
        found.append(_refuse(shared, stats.OVERLAP))
    return [*found, "return None"]

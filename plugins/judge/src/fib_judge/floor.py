"""The physics floor: no solution is faster than the device can move and compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.definition import is_literal
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fib_judge.calibration import Ceilings
    from flashinfer_bench.data import Definition, TensorSpec


# What any right solution of a definition has to move and compute, whatever it does.
#
# Only what is certain counts: too low a figure lets a false latency through to the other checks,
# too high a one accuses an honest solution. So a tensor that indices select from counts for nothing
# (a paged cache is far larger than what a call reads of it), and products are counted from the axes
# that are contracted, never from the sizes of the tensors alone (which would charge a depthwise
# convolution for all pairs of channels).


TABLE_VERSION = 2
"""Changes whenever the floor of some definition may change."""

_SELECTING = ("int16", "int32", "int64", "bool")


@dataclass(frozen=True)
class OpCost:
    """What is certain about an operation type that leaves no element of an input unread.

    Attributes
    ----------
    contracts : bool
        Whether an output is the contraction of two inputs.
    harmless : tuple of str
        Scalar inputs whose value cannot make another input superfluous.
    """

    contracts: bool = False
    harmless: tuple[str, ...] = ()


_NORM = OpCost(harmless=("eps", "epsilon"))  # each row is scaled by what all of it sums up to

# Types that are not here are open: even their outputs may be views of their inputs.
TABLE: dict[str, Optional[OpCost]] = {
    "gemm": OpCost(contracts=True),  # every element of both factors is in some product
    "rmsnorm": _NORM,
    "layernorm": _NORM,
    "elementwise": OpCost(),  # each element is computed from those in its place
    # Which parts of the inputs are read depends on indices, lengths or routing.
    **dict.fromkeys(
        ("gqa_paged", "gqa_ragged", "mla_paged", "mla_ragged", "dsa_paged", "nsa_paged", "moe")
    ),
    "sampling": None,  # a search may end before it has seen all probabilities
}


@dataclass(frozen=True)
class LeastWork:
    """What any right solution must do.

    Attributes
    ----------
    nbytes : int
        Bytes to read and write.
    flops : int
        Floating-point (or integer) operations of a matrix product.
    dtypes : tuple of str
        Of the factors of that product.
    """

    nbytes: int
    flops: int = 0
    dtypes: tuple[str, ...] = ()


def least_work(definition: Definition, axes: Mapping[str, int]) -> LeastWork:
    """Return what any right solution must do at least.

    Parameters
    ----------
    definition : Definition
        What is computed.
    axes : mapping of str to int
        Value of each variable axis.

    Raises
    ------
    DataError
        If a variable axis has no value.
    """
    cost = TABLE.get(definition.op_type)
    written = _outputs(definition, axes, may_be_views=definition.op_type not in TABLE)
    if cost is None or _may_select(definition, cost):
        return LeastWork(written)
    shapes = (*definition.get_input_shapes(axes), *definition.get_output_shapes(axes))
    if any(0 in shape for shape in shapes if shape is not None):
        return LeastWork(written)  # such as a weight that is multiplied with no rows
    read = sum(_sizes(definition.inputs, definition.get_input_shapes(axes)))
    found = _contraction(definition) if cost.contracts else None
    if found is None:
        return LeastWork(written + read)
    names, dtypes = found
    sizes = {**axes, **definition.const_axes}
    return LeastWork(written + read, 2 * math.prod(sizes[name] for name in names), dtypes)


def _outputs(definition: Definition, axes: Mapping[str, int], *, may_be_views: bool) -> int:
    """Return the bytes of the outputs that have to be written.

    An output of an unknown operation that has the type of an input may be a view of it, or the
    input itself, changed in a few places: then nothing is certain about it.
    """
    inputs = {spec.dtype for spec in definition.inputs.values() if spec.shape is not None}
    sizes = _sizes(definition.outputs, definition.get_output_shapes(axes))
    specs = definition.outputs.values()
    return sum(
        size
        for spec, size in zip(specs, sizes, strict=True)
        if not (may_be_views and spec.dtype in inputs)
    )


def _sizes(specs: Mapping[str, TensorSpec], shapes: list[Optional[tuple[int, ...]]]) -> list[int]:
    """Return the bytes of each tensor; a scalar has none, it comes with the call."""
    return [
        0 if shape is None else spec.dtype.nbytes(math.prod(shape))
        for spec, shape in zip(specs.values(), shapes, strict=True)
    ]


def _may_select(definition: Definition, cost: OpCost) -> bool:
    """Return whether an input may say that others need not be read: indices, masks, factors."""
    return any(
        spec.dtype.value in _SELECTING or (spec.shape is None and name not in cost.harmless)
        for name, spec in definition.inputs.items()
    )


def _contraction(definition: Definition) -> Optional[tuple[frozenset[str], tuple[str, ...]]]:
    """Return the axes of the matrix product that the first output is, and its factors' types.

    Its shape has to say so: some axes of the output are of the first factor only, some of the
    second only; what is not in the output is in both, and summed over. With anything else
    (an axis that stands twice, or in one factor only) it may be another operation: None.
    """
    output = next(iter(definition.outputs.values()))
    factors = [spec for spec in definition.inputs.values() if len(spec.shape or ()) >= 2]
    if len(factors) != 2 or not output.shape:
        return None
    first, second = (frozenset(spec.shape or ()) for spec in factors)
    result = frozenset(output.shape)
    distinct = all(_names_each_axis_once(spec.shape or ()) for spec in (*factors, output))
    summed = (first & second) - result
    is_product = (
        distinct
        and bool(summed)
        and bool(first - second)
        and bool(second - first)
        and result == (first | second) - summed
    )
    return (first | second, tuple(spec.dtype.value for spec in factors)) if is_product else None


def _names_each_axis_once(shape: Sequence[str]) -> bool:
    """Return whether a shape says which axis is which; equal sizes may be different axes."""
    return len(set(shape)) == len(shape) and not any(map(is_literal, shape))


MARGIN = 1.25
"""How much better than the ceilings an honest solution is believed to be.

Ceilings are the best of many measurements of torch's own operations. A hand-written kernel can
still come closer to what the device can do, and a clock has noise. The best copies and products of
vendors reach 80 % to 95 % of what is physically there, which leaves less than this factor.
"""


@dataclass(frozen=True)
class Floor:
    """A latency below which a claim is not believed.

    Attributes
    ----------
    ms : float
        In milliseconds.
    nbytes, flops : int
        What any solution must move and compute at least.
    limited_by : str
        ``bytes``, ``flops``, ``call``, or ``nothing`` where there is no floor.
    version : int
        Of the table that says what must be moved and computed.
    """

    ms: float
    nbytes: int
    flops: int
    limited_by: str
    version: int = TABLE_VERSION


def physics_floor(
    definition: Definition,
    axes: Mapping[str, int],
    ceilings: Ceilings,
    inputs: Optional[Mapping[str, Any]] = None,
) -> Floor:
    """Return the floor for one workload of `definition`.

    It is the longest of three times, each divided by `MARGIN`: moving what must be moved at the
    highest bandwidth that a working set of this size can have, computing what must be computed at
    the highest rate of any type in which that may be done, and the shortest call. Ceilings that
    have not settled make none: a busy machine shows a small part of what it can do.

    Parameters
    ----------
    definition : Definition
        What is computed.
    axes : mapping of str to int
        Value of each variable axis.
    ceilings : Ceilings
        Of the device.
    inputs : mapping of str to torch.Tensor or int, optional
        Integers that are the same in each call, for the op family.

    Raises
    ------
    DataError
        If a variable axis has no value.
    """
    family = default_catalog().family_of(definition.op_type)
    told = None
    if family is not None and family.spec.work is not None:  # a plugin may say so
        told = family.load(family.spec.work)(definition, axes, inputs or {})
    work = least_work(definition, axes) if told is None else LeastWork(int(told[0]), int(told[1]))
    if not ceilings.settled:
        return Floor(0.0, work.nbytes, work.flops, "nothing")
    times_s = {
        "call": ceilings.call_ms / 1e3,
        "bytes": work.nbytes / ceilings.bandwidth(work.nbytes),
        "flops": work.flops / ceilings.peak(*work.dtypes),
    }
    limit = max(times_s, key=lambda name: times_s[name])
    return Floor(times_s[limit] * 1e3 / MARGIN, work.nbytes, work.flops, limit)

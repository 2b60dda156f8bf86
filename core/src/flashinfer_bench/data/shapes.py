"""Axes and shapes of a definition: from names to sizes and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Shape = Optional[tuple[int, ...]]
"""Sizes of a tensor, outermost first; None for a scalar."""


class HasShape(Protocol):
    """An input or output of a definition."""

    shape: Optional[list[str]]


def is_literal(entry: str) -> bool:
    """Return whether an entry of a shape is a size (``"56"``) rather than the name of an axis."""
    return entry.isascii() and entry.isdigit()


def require_known_axes(
    shape: Optional[Sequence[str]], axes: Collection[str], *, field: str
) -> None:
    """Check that a shape names axes of the definition only.

    Raises
    ------
    DataError
        Naming the unknown axis and those there are.
    """
    for entry in shape or ():
        if entry not in axes and not is_literal(entry):
            known = ", ".join(axes) or "none"
            raise DataError(f"'{entry}' is not an axis of the definition ({known})", field=field)


def bind_axes(
    tensors: Mapping[str, HasShape], names: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return where each axis is first seen: (name of the tensor, dimension)."""
    bindings: dict[str, tuple[str, int]] = {}
    for tensor_name, tensor in tensors.items():
        for dimension, entry in enumerate(tensor.shape or ()):
            if entry in names:
                bindings.setdefault(entry, (tensor_name, dimension))
    return bindings


def concrete(name: str, shape: Optional[Sequence[str]], sizes: Mapping[str, int]) -> Shape:
    """Replace the axes of a shape by their sizes.

    Raises
    ------
    DataError
        If an axis has no value.
    """
    if shape is None:
        return None
    missing = [entry for entry in shape if entry not in sizes and not is_literal(entry)]
    if missing:
        raise DataError(f"no value for axis '{missing[0]}' of '{name}'", field=f"axes.{missing[0]}")
    return tuple(sizes[entry] if entry in sizes else int(entry) for entry in shape)


def zip_inputs(
    tensors: Mapping[str, HasShape], values: Sequence[Any]
) -> Iterable[tuple[HasShape, Any]]:
    """Pair each declared input with its value.

    Raises
    ------
    DataError
        If there are more or fewer values than inputs.
    """
    if len(values) != len(tensors):
        names = ", ".join(tensors)
        raise DataError(
            f"{len(values)} inputs given, {len(tensors)} declared ({names})", field="inputs"
        )
    return zip(tensors.values(), values, strict=True)


def read_axes(
    tensors: Mapping[str, HasShape],
    input_shapes: Sequence[Optional[Sequence[int]]],
    const_axes: Mapping[str, int],
    var_axes: Sequence[str],
) -> dict[str, int]:
    """Read the variable axes off the shapes of the inputs.

    Parameters
    ----------
    tensors : mapping of str to HasShape
        The declared inputs.
    input_shapes : sequence
        Shape of each input in declaration order; None for a scalar.
    const_axes : mapping of str to int
        Sizes that are fixed.
    var_axes : sequence of str
        Axes to read.

    Returns
    -------
    dict of str to int
        Value of each variable axis that an input shows, in the order of `var_axes`.

    Raises
    ------
    DataError
        If the shapes do not fit the declaration, or disagree with one another.
    """
    zip_inputs(tensors, input_shapes)
    sizes = dict(const_axes)
    for (name, tensor), shape in zip(tensors.items(), input_shapes, strict=True):
        if tensor.shape is not None:
            _read_shape(name, tensor.shape, shape, sizes)
    return {axis: sizes[axis] for axis in var_axes if axis in sizes}


def _read_shape(
    name: str,
    declared: Sequence[str],
    shape: Optional[Sequence[int]],
    sizes: dict[str, int],
) -> None:
    field = f"inputs.{name}"
    wanted = f"[{', '.join(declared)}]"
    if shape is None:
        raise DataError(
            f"input '{name}' must be a tensor of shape {wanted}, not a scalar", field=field
        )
    if len(shape) != len(declared):
        raise DataError(
            f"input '{name}' has shape {list(shape)}, declared is {wanted}", field=field
        )
    for axis, size in zip(declared, shape, strict=True):
        expected = sizes.setdefault(axis, int(axis) if is_literal(axis) else int(size))
        if int(size) != expected:
            raise DataError(
                f"input '{name}' of shape {list(shape)} has {axis}={int(size)}, not {expected}",
                field=field,
            )


def merge_arguments(
    inputs: Sequence[str], outputs: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Put named arguments in their places, inputs first, then outputs.

    Returns
    -------
    tuple
        One value for each input or, if any output is given, one for each input and output.

    Raises
    ------
    DataError
        If an argument is unknown, given twice, missing, or there are too many.
    """
    names = [*inputs, *outputs]
    counts = f"{len(inputs)} inputs, or {len(names)} inputs and outputs"
    if len(args) > len(names):
        raise DataError(f"{len(args)} positional arguments given; expected {counts}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise DataError(f"unknown argument '{name}'; there are {', '.join(names)}", field=name)
        if name in given:
            raise DataError(f"argument '{name}' is given by position and by name", field=name)
        given[name] = value
    wanted = inputs if all(name in inputs for name in given) else names
    missing = [name for name in wanted if name not in given]
    if missing:
        raise DataError(
            f"missing arguments {', '.join(missing)}; expected {counts}", field=missing[0]
        )
    return tuple(given[name] for name in wanted)

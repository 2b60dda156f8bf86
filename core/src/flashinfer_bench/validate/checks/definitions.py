"""Definitions must be unique and make sense by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.findings import Finding, Place
    from flashinfer_bench.validate.records import Contents


def check_definitions(contents: Contents) -> Iterator[Finding]:
    """Find duplicate names, misplaced files, axes without use, and axes that nothing determines."""
    first: dict[str, Place] = {}
    for definition, place in contents.definition_files:
        known = first.setdefault(definition.name, place)
        if known is not place:
            message = f"there is another definition named {definition.name!r}: {known.path}"
            yield place.error(message, "name", "rename or remove one of the two")
        yield from _check_place(definition, place)
        yield from _check_axes(definition, place)
        if not definition.outputs:
            yield place.error("it has no output", "outputs")


def _check_place(definition: Definition, place: Place) -> Iterator[Finding]:
    if place.path.stem != definition.name:
        yield place.warning(f"the file should be named {definition.name}.json", "name")
    folder = place.path.parts[1:-1]
    if folder and folder[0] != definition.op_type:
        message = f"op_type is {definition.op_type!r}, but the folder is {folder[0]!r}"
        yield place.warning(message, "op_type")


def _check_axes(definition: Definition, place: Place) -> Iterator[Finding]:
    shown = _axes_of(definition, inputs=True)
    used = shown | _axes_of(definition, inputs=False)
    if not definition.axes:
        yield place.warning("it has no axes", "axes")
    # A constant that is no size is fine: it documents a parameter, such as top_k.
    for axis in definition.var_axes:
        if axis not in used:
            yield place.warning("no input or output has this axis", f"axes.{axis}")
        elif axis not in shown:
            # A run gets its value from the workload, but a caller of the kernel has only inputs.
            message = "no input shows the size of this variable axis"
            yield place.warning(message, f"axes.{axis}")
    for axis, size in definition.const_axes.items():
        if size == 0:
            yield place.warning("an axis of size 0 makes its tensors empty", f"axes.{axis}")


def _axes_of(definition: Definition, *, inputs: bool) -> set[str]:
    tensors = definition.inputs if inputs else definition.outputs
    return {axis for tensor in tensors.values() for axis in tensor.shape or ()}

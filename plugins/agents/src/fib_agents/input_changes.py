"""Changes of inputs with which a reference gives what a certain mistake would give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch


class Change(NamedTuple):
    """Changed inputs.

    Attributes
    ----------
    cause : str
        The mistake.
    text : str
        The change in words.
    inputs : list
        All inputs.
    undo : callable
        Is applied to the output of the reference.
    rivals : sequence of list
        Inputs that must not give the same, else the change is not what explains it.
    """

    cause: str
    text: str
    inputs: list[Any]
    undo: Callable[[torch.Tensor], torch.Tensor] = lambda one: one
    rivals: Sequence[list[Any]] = ()


class InputChanges(NamedTuple):
    """Makes changes of one set of inputs.

    Attributes
    ----------
    inputs : sequence
        Tensors and scalars in the order of the definition.
    shapes : mapping of str to sequence of str
        Names of the inputs, in this order, and of their axes.
    sizes : mapping of str to int
        Sizes of the axes.
    output : tuple of int
        Shape of the output.
    fixed : collection of str
        Inputs that may hold only certain values, such as page tables, and stay as they are.
    """

    inputs: Sequence[Any]
    shapes: Mapping[str, Sequence[str]]
    sizes: Mapping[str, int]
    output: tuple[int, ...]
    fixed: Sequence[str] = ()

    def all(self) -> Iterator[Change]:
        """Yield the changes, those first that explain most directly."""
        yield from self._exchanges()
        yield from self._constants()
        for k, name, each in self._tensors():
            for factor, text in factors(self.sizes) if is_float(each) else ():
                told = f"the output is as if input {name!r} had been multiplied by {text}"
                # Where a much larger factor gives the same, as in a norm, it is something else.
                rivals = [self._having(k, each * (factor * more)) for more in (0.5, 2.0)]
                changed = self._having(k, each * factor)
                yield Change("missing_scale", told, changed, rivals=rivals)
        yield from self._shifts()
        yield from self._paddings()
        yield from self._roundings()

    def _tensors(self) -> list[tuple[int, str, torch.Tensor]]:
        return [
            (k, name, each)
            for k, (name, each) in enumerate(zip(self.shapes, self.inputs, strict=True))
            if hasattr(each, "dtype") and name not in self.fixed
        ]

    def _having(self, k: int, value: Any) -> list[Any]:
        return [value if number == k else each for number, each in enumerate(self.inputs)]

    def _exchanges(self) -> Iterator[Change]:
        tensors, rank = self._tensors(), len(self.output)
        for k, name, each in tensors:
            pairs = [(p, q) for p in range(each.ndim) for q in range(p + 1, each.ndim)]
            for p, q in pairs[-6:]:
                turned = each.transpose(p, q)
                readings = [turned]
                if each.shape[p] != each.shape[q]:
                    if q - p > 1:
                        continue
                    other = each.reshape(turned.shape).transpose(p, q)
                    readings = [turned.reshape(each.shape), other]
                text = f"the output is as if axes {p} and {q} of input {name!r} were exchanged"
                reduces = rank < each.ndim and len(tensors) == 1
                cause = "wrong_axis" if reduces else "transposed_operand"
                for reading in readings:
                    yield Change(cause, text, self._having(k, reading.contiguous()))
        for p, q in ((-2, -1), (-3, -2), (-3, -1)):
            if rank >= -p:
                changed = list(self.inputs)
                for k, _, each in tensors:
                    if each.ndim >= rank:
                        changed[k] = each.transpose(p, q).contiguous()
                text = f"the output is as if axes {p % rank} and {q % rank} had changed roles"
                yield Change("wrong_axis", text, changed, lambda y, p=p, q=q: y.transpose(p, q))  # type: ignore[misc]
        for number, (k, name, each) in enumerate(tensors):
            for other_k, second, value in tensors[number + 1 :]:
                if (each.shape, each.dtype) == (value.shape, value.dtype):
                    swapped = self._having(k, value)
                    swapped[other_k] = each
                    text = f"the output is as if inputs {name!r} and {second!r} were exchanged"
                    yield Change("swapped_operands", text, swapped)

    def _constants(self) -> Iterator[Change]:
        for k, (name, each) in enumerate(zip(self.shapes, self.inputs, strict=True)):
            for value in (0.0, 1.0) if is_float(each) or isinstance(each, float) else ():
                text = f"the output is as if input {name!r} were {value:g} throughout"
                changed = value if isinstance(each, float) else each.new_full(each.shape, value)
                yield Change("ignored_input", text, self._having(k, changed))

    def _shifts(self) -> Iterator[Change]:
        for k, name, each in self._tensors():
            for dim, size in enumerate(each.shape):
                for shift in (1, -1) if size > 2 else ():
                    edge = 0 if shift > 0 else size - 1
                    rolled = each.roll(shift, dim)
                    kept, empty, cut = rolled.clone(), rolled.clone(), each.clone()
                    kept.select(dim, edge).copy_(each.select(dim, edge))
                    empty.select(dim, edge).zero_()
                    # In a sum, an element that is left out would look like one that is moved out.
                    cut.select(dim, size - 1 - edge).zero_()
                    how = f"were moved by {shift} along axis {dim}"
                    text = f"the output is as if the elements of input {name!r} {how}"
                    for value in (rolled, kept, empty):
                        changed, rivals = self._having(k, value), [self._having(k, cut)]
                        yield Change("off_by_one", text, changed, rivals=rivals)
            if not each.dtype.is_floating_point and str(each.dtype) != "torch.bool":
                for shift in (1, -1):
                    text = f"the output is as if {shift:+d} were added to input {name!r}"
                    yield Change("off_by_one", text, self._having(k, each + shift))

    def _paddings(self) -> Iterator[Change]:
        """Fill an axis up with zeros to a multiple of a block, as unmasked loads do."""
        from torch.nn.functional import pad

        for axis, size in self.sizes.items():
            targets = {-(-size // (1 << power)) * (1 << power) for power in range(3, 13)}
            for padded in sorted(targets - {size}):
                changed = list(self.inputs)
                for k, name, each in self._tensors():
                    widths = [0] * (2 * each.ndim)
                    for dim, own in enumerate(self.shapes[name]):
                        if own == axis:
                            widths[2 * (each.ndim - 1 - dim) + 1] = padded - size
                    changed[k] = pad(each, widths)
                text = f"the output is as if axis {axis!r} (size {size}) were filled up with zeros"
                places = tuple(slice(0, each) for each in self.output)
                text += f" to {padded}"
                yield Change("padding_in_reduction", text, changed, lambda y, at=places: y[at])  # type: ignore[misc]

    def _roundings(self) -> Iterator[Change]:
        import torch

        for dtype in (torch.bfloat16, torch.float16):
            rounded = [
                each.to(dtype).to(each.dtype)
                if is_float(each) and each.element_size() >= 4
                else each
                for each in self.inputs
            ]
            text = f"the output is as if the inputs had been rounded to {str(dtype)[6:]}"
            yield Change("low_precision", text, rounded)


def factors(sizes: Mapping[str, int]) -> Iterator[tuple[float, str]]:
    """Yield factors that are easily forgotten, and their expressions.

    Parameters
    ----------
    sizes : mapping of str to int
        Sizes of the axes.
    """
    yield from ((2.0, "2"), (0.5, "1/2"), (math.log2(math.e), "log2(e)"), (math.log(2), "ln(2)"))
    for name, size in sizes.items():
        yield from ((float(size), name), (1 / size, f"1/{name}"))
        yield from ((size**0.5, f"sqrt({name})"), (size**-0.5, f"1/sqrt({name})"))
        padded = 1 << (size - 1).bit_length()
        if padded != size:
            yield from ((size / padded, f"{name}/{padded}"), (padded / size, f"{padded}/{name}"))


def is_float(value: Any) -> bool:
    """Return whether a value is a tensor of floats that can be calculated with, unlike float8."""
    return (
        hasattr(value, "dtype") and bool(value.dtype.is_floating_point) and value.element_size() > 1
    )

"""What a definition says about the inputs of a call, worked out once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.constraints import parse_constraint
from flashinfer_bench.tensors.dtypes import first_places, operands_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tensors.dtypes import Operand

_LAST = r"(?P<input>\w+)\[-1\](?:\.item\(\))?"
_TOTAL = re.compile(rf"(?P<axis>\w+) *== *{_LAST}")
_TOTAL_BEHIND = re.compile(rf"{_LAST} *== *(?P<axis>\w+)")


class OtherCallError(Exception):
    """A call is not one of the definition; the reason is one of few constant texts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Layout:
    """The inputs of a definition.

    Parameters
    ----------
    definition : Definition
        The definition.

    Attributes
    ----------
    inputs : tuple of Operand
        The inputs, and their `names`.
    places : dict of str to (int, int)
        Where each variable axis is first seen: position of the input, and dimension.
    totals : dict of str to str
        The axis that is the last element of an index pointer, by the name of that input; from
        constraints such as ``num_kv_indices == kv_indptr[-1].item()``.

    Raises
    ------
    CapabilityError
        If torch is too old for one of the dtypes.
    """

    def __init__(self, definition: Definition) -> None:
        self._constants = definition.const_axes
        self._constraints = [parse_constraint(text) for text in definition.constraints]
        self.name = definition.name
        self.inputs = operands_of(definition.inputs, self._constants)
        self.names = tuple(each.name for each in self.inputs)
        found = first_places(self.inputs)
        self.places = {axis: found[axis] for axis in definition.var_axes if axis in found}
        matches = [
            pattern.fullmatch(text.strip())
            for text in definition.constraints
            for pattern in (_TOTAL, _TOTAL_BEHIND)
        ]
        self.totals = {
            match["input"]: match["axis"]
            for match in matches
            if match is not None and match["axis"] in self.places
        }

    def size_of(self, axis: str) -> str:
        """Return Python for the size of an axis, with ``a0``, ``a1``, … for the inputs."""
        position, dimension = self.places[axis]
        return f"a{position}.shape[{dimension}]"

    def tensors(self, dtypes: Optional[tuple[str, ...]] = None) -> tuple[str, ...]:
        """Return the inputs that are tensors, of some dtypes of torch or all, by name."""
        return tuple(
            each.name
            for each in self.inputs
            if each.shape is not None
            and (dtypes is None or str(each.dtype).removeprefix("torch.") in dtypes)
        )

    def read(self, args: Optional[Sequence[Any]]) -> tuple[dict[str, int], dict[str, Any]]:
        """Check the inputs of a call against the definition.

        Parameters
        ----------
        args : sequence, optional
            All inputs, in declaration order; None if they could not be found.

        Returns
        -------
        tuple of (dict, dict)
            Value of each variable axis, in declaration order; and of each scalar, by name. A scalar
            that is on a GPU is still a tensor there.

        Raises
        ------
        OtherCallError
            If it is no call of the definition.
        """
        if args is None:
            raise OtherCallError("arguments")
        if len(args) != len(self.inputs):
            raise OtherCallError("number of arguments")
        axes: dict[str, int] = {}
        scalars: dict[str, Any] = {}
        for each, value in zip(self.inputs, args, strict=True):
            if each.shape is None:
                scalars[each.name] = scalar_of(value, each.scalar)
            else:
                _read_tensor(each, value, axes)
        ordered = {axis: axes[axis] for axis in self.places}
        sizes = {**self._constants, **ordered}
        for constraint in self._constraints:
            if constraint.decidable(sizes) and not constraint.evaluate(sizes):
                raise OtherCallError("constraint")
        return ordered, scalars


def _read_tensor(each: Operand, value: Any, axes: dict[str, int]) -> None:
    import torch

    assert each.shape is not None
    if not isinstance(value, torch.Tensor):
        raise OtherCallError("not a tensor")
    _require_data(value)
    if value.dtype != each.dtype:
        raise OtherCallError("dtype")
    if value.dim() != len(each.shape):
        raise OtherCallError("rank")
    for size, wanted in zip(value.shape, each.shape, strict=True):
        if isinstance(wanted, str):
            if axes.setdefault(wanted, int(size)) != size:
                raise OtherCallError("axes disagree")
        elif size != wanted:
            raise OtherCallError("constant axis")


def _require_data(value: torch.Tensor) -> None:
    """Refuse what could not be copied.

    Before a policy takes the call for the one of its size: what comes next may be a real one.
    """
    import torch

    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise OtherCallError("tensor subclass")  # of fake, distributed and packed tensors
    if value.layout is not torch.strided:
        raise OtherCallError("not dense")
    if value.is_meta:
        raise OtherCallError("no data")


def scalar_of(value: Any, kind: type) -> Any:
    """Return a scalar input as a number of Python; one on a GPU as it is.

    Raises
    ------
    OtherCallError
        If it is no number, or none of that kind.
    """
    if getattr(value, "is_cuda", False) is True and value.numel() == 1:
        return value
    item = getattr(value, "item", None)  # also of NumPy
    try:
        number = value if item is None else item()
        fits = isinstance(number, (bool, int, float))
        converted = kind(number) if fits else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        converted = None
    # A NaN is not equal to itself.
    if converted is None or not (converted == number or number != number):
        raise OtherCallError("scalar")
    return converted

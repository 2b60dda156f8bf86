"""What a definition says about the inputs of a call, worked out once."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.constraints import parse_constraint
from flashinfer_bench.tensors.operands import first_places, operands_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.data.constraints import Constraint
    from flashinfer_bench.tensors.operands import Operand


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

    Raises
    ------
    CapabilityError
        If torch is too old for one of the dtypes.
    """

    def __init__(self, definition: Definition) -> None:
        constants = definition.const_axes
        self.name = definition.name
        self.inputs = operands_of(definition.inputs, constants)
        self.names = tuple(each.name for each in self.inputs)
        self._var_axes = definition.var_axes
        self._constants = constants
        self._constraints = [parse_constraint(text) for text in definition.constraints]

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where each variable axis is first seen: position of the input, and dimension."""
        found = first_places(self.inputs)
        return {axis: found[axis] for axis in self._var_axes if axis in found}

    @cached_property
    def free_axes(self) -> tuple[str, ...]:
        """The axes that decide all others: without those that a constraint ties to an earlier one.

        ``len_indptr == batch_size + 1`` is such a constraint.
        """
        tied: set[str] = set()
        for constraint in self._constraints:
            pair = _tied(constraint)
            if pair is not None and pair <= self.places.keys() and not pair & tied:
                tied.add(max(pair, key=list(self.places).index))
        return tuple(axis for axis in self.places if axis not in tied)

    @cached_property
    def totals(self) -> dict[str, str]:
        """The axis that is the last element of an index pointer, by the name of that input.

        From constraints such as ``num_kv_indices == kv_indptr[-1].item()``.
        """
        pairs = (_total(each) for each in self._constraints)
        return {name: axis for name, axis in filter(None, pairs) if axis in self.places}

    def size_of(self, axis: str) -> str:
        """Return Python for the size of an axis, with ``a0``, ``a1``, … for the inputs."""
        position, dimension = self.places[axis]
        return f"a{position}.shape[{dimension}]"

    def tensors(self, dtypes: Optional[tuple[torch.dtype, ...]] = None) -> tuple[str, ...]:
        """Return the inputs that are tensors, of some dtypes or all, by name."""
        return tuple(
            each.name
            for each in self.inputs
            if each.shape is not None and (dtypes is None or each.dtype in dtypes)
        )

    def read(self, args: Sequence[Any]) -> tuple[dict[str, int], dict[str, Any]]:
        """Check the inputs of a call against the definition.

        Parameters
        ----------
        args : sequence
            All inputs, in declaration order.

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


def _tied(constraint: Constraint) -> Optional[frozenset[str]]:
    """Return the two axes of ``a == b``, ``a == b + 1`` and the like."""
    body = constraint.tree.body
    if not (isinstance(body, ast.Compare) and [type(each) for each in body.ops] == [ast.Eq]):
        return None
    sides = [_shifted(body.left), _shifted(body.comparators[0])]
    pair = frozenset(side for side in sides if side is not None)
    return pair if len(pair) == 2 else None


def _shifted(node: ast.expr) -> Optional[str]:
    """Return the name in ``a``, ``a + 1`` or ``a - 1``."""
    if isinstance(node, ast.Name):
        return node.id
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.Add, ast.Sub))
        and isinstance(node.left, ast.Name)
        and isinstance(node.right, ast.Constant)
        and type(node.right.value) is int
    ):
        return node.left.id
    return None


def _total(constraint: Constraint) -> Optional[tuple[str, str]]:
    """Return input and axis of ``axis == input[-1].item()``, in either order."""
    body = constraint.tree.body
    if not (isinstance(body, ast.Compare) and [type(each) for each in body.ops] == [ast.Eq]):
        return None
    left, right = body.left, body.comparators[0]
    for axis, last in ((left, right), (right, left)):
        name = _last_of(last)
        if isinstance(axis, ast.Name) and name is not None:
            return name, axis.id
    return None


def _last_of(node: ast.expr) -> Optional[str]:
    """Return the name in ``name[-1]`` or ``name[-1].item()``."""
    text = ast.unparse(node).removesuffix(".item()")
    name = text.removesuffix("[-1]")
    return name if name != text and name.isidentifier() else None

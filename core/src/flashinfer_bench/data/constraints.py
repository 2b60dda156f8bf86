"""Constraints of a definition: relations such as ``len_indptr == batch_size + 1``.

They are parsed into Python's syntax tree and evaluated by `_value`, which supports integers, axis
names, comparisons, ``and``/``or``/``not`` and ``+ - * // % **``; ``eval`` is never used. A
constraint may also refer to values of tensors (``kv_indptr[-1].item()``): it can be parsed, but not
evaluated from the axes.
"""

from __future__ import annotations

import ast
import operator
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_LENGTH = 1000
"""Maximum length of a constraint, in characters."""

MAX_BITS = 256
"""Maximum size of an intermediate result, in bits; sizes of tensors need 64."""

_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator | ast.unaryop], Callable[..., int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_PLAIN_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Compare, ast.BoolOp, ast.And, ast.Or),
    *(ast.BinOp, ast.UnaryOp, *_COMPARE, *_ARITHMETIC),
)


@dataclass(frozen=True)
class Constraint:
    """A parsed constraint.

    Parameters
    ----------
    text : str
        The expression.
    names : frozenset of str
        All names in it: axes, and tensors if it refers to their values.
    axes_only : bool
        Whether it has only integers, names and supported operators, so that axis values suffice.
    tree : ast.Expression
        Its syntax tree.
    """

    text: str
    names: frozenset[str]
    axes_only: bool
    tree: ast.Expression

    def decidable(self, axes: Mapping[str, int]) -> bool:
        """Return whether the constraint can be evaluated with the values in `axes`."""
        return self.axes_only and self.names <= axes.keys()

    def evaluate(self, axes: Mapping[str, int]) -> bool:
        """Return whether the constraint holds for these axis values.

        Raises
        ------
        DataError
            As for `value`.
        """
        return bool(self.value(axes))

    def value(self, axes: Mapping[str, int]) -> int:
        """Return the value of the expression for these axis values.

        Raises
        ------
        DataError
            If it needs more than `axes`, divides by zero, or exceeds `MAX_BITS`.
        """
        if not self.axes_only:
            raise DataError(f"constraint '{self.text}' depends on tensors, not only on axis values")
        try:
            return int(_value(self.tree.body, axes))
        except (ValueError, ZeroDivisionError, RecursionError) as error:
            known = {ZeroDivisionError: "divides by zero", RecursionError: "is nested too deeply"}
            problem = known.get(type(error), error)
            raise DataError(f"constraint '{self.text}' {problem}") from error


def parse_constraint(text: str) -> Constraint:
    """Parse one constraint.

    Parameters
    ----------
    text : str
        A single Python expression.

    Returns
    -------
    Constraint
        The parsed constraint.

    Raises
    ------
    DataError
        If `text` is not an expression, or is too long or too deeply nested.
    """
    if len(text) > MAX_LENGTH:
        raise DataError(f"constraint of {len(text)} characters; the maximum is {MAX_LENGTH}")
    try:
        tree = parse_python(text.strip(), mode="eval")
    except DataError as error:
        raise DataError(f"constraint '{text}' is not an expression: {error.message}") from error
    nodes = list(ast.walk(tree))
    names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
    plain = all(
        isinstance(node, _PLAIN_NODES)
        and (not isinstance(node, ast.Constant) or type(node.value) in (int, bool))
        for node in nodes
    )
    return Constraint(text=text, names=names, axes_only=plain, tree=tree)


def parse_python(source: str, mode: str = "exec") -> Any:
    """Return the syntax tree of Python source.

    Raises
    ------
    DataError
        If it is not valid Python; with the line, where known.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes, which are not errors
            return ast.parse(source, mode=mode)
    except SyntaxError as error:
        raise DataError(error.msg, line=error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise DataError(str(error) or "nested too deeply") from error


def _value(node: ast.expr, axes: Mapping[str, int]) -> Any:
    """Evaluate one of `_PLAIN_NODES`; a ValueError says what is not allowed."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in axes:
            raise ValueError(f"needs axis '{node.id}'; available axes: {', '.join(axes) or 'none'}")
        return axes[node.id]
    if isinstance(node, ast.Compare):
        left = _value(node.left, axes)
        for operation, right_node in zip(node.ops, node.comparators, strict=True):
            right = _value(right_node, axes)
            if not _COMPARE[type(operation)](left, right):
                return False
            left = right
        return True
    if isinstance(node, ast.BoolOp):
        values = (_value(part, axes) for part in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return _ARITHMETIC[type(node.op)](_value(node.operand, axes))
    assert isinstance(node, ast.BinOp)
    left, right = int(_value(node.left, axes)), int(_value(node.right, axes))
    if isinstance(node.op, ast.Pow) and not 0 <= right <= MAX_BITS:
        raise ValueError(f"has the exponent {right}; allowed: 0 to {MAX_BITS}")
    result = _ARITHMETIC[type(node.op)](left, right)
    if result.bit_length() > MAX_BITS:
        raise ValueError(f"has a result of more than {MAX_BITS} bits")
    return result

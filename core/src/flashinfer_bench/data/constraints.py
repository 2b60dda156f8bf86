"""Constraints of a definition: relations such as ``len_indptr == batch_size + 1``.

They are parsed into Python's syntax tree and evaluated by a walker of our own that knows integers,
axis names, comparisons, ``and``/``or``/``not`` and ``+ - * // % **``. Nothing is ever passed to
``eval``. A constraint may also speak about values of tensors (``kv_indptr[-1].item()``); such a
one parses, but cannot be decided from the axes.
"""

from __future__ import annotations

import ast
import operator
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = Union[int, bool]

MAX_LENGTH = 1000
"""Longest constraint, in characters."""

MAX_BITS = 256
"""Largest intermediate result, in bits; sizes of tensors need 64."""

_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_PLAIN_NODES = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Compare,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.BinOp,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.UAdd,
    *_COMPARE,
    *_ARITHMETIC,
)


@dataclass(frozen=True)
class Constraint:
    """A parsed constraint.

    Parameters
    ----------
    text : str
        The expression.
    names : frozenset of str
        All names in it: axes, and tensors if it speaks about values.
    axes_only : bool
        Whether it is made of integers, names and plain operators alone, so that axes decide it.
    tree : ast.Expression
        Its syntax tree.
    """

    text: str
    names: frozenset[str]
    axes_only: bool
    tree: ast.Expression

    def decidable(self, axes: Mapping[str, int]) -> bool:
        """Return whether the values in `axes` are enough to evaluate it."""
        return self.axes_only and self.names <= axes.keys()

    def evaluate(self, axes: Mapping[str, int]) -> bool:
        """Return whether the constraint holds for these axis values.

        Raises
        ------
        DataError
            If it cannot be decided from `axes`, divides by zero, or grows beyond `MAX_BITS`.
        """
        if not self.axes_only:
            raise DataError(f"constraint '{self.text}' depends on tensors, not only on axis values")
        try:
            return bool(_Evaluator(self.text, axes).value(self.tree.body))
        except RecursionError as error:
            raise DataError(f"constraint '{self.text}' is nested too deeply") from error


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
        raise DataError(f"constraint of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    tree = _parse(text)
    nodes = list(ast.walk(tree))
    names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
    plain = all(isinstance(node, _PLAIN_NODES) and _is_plain_value(node) for node in nodes)
    return Constraint(text=text, names=names, axes_only=plain, tree=tree)


def evaluate_constraint(text: str, axes: Mapping[str, int]) -> bool:
    """Parse a constraint and evaluate it for these axis values.

    Raises
    ------
    DataError
        As of `parse_constraint` and `Constraint.evaluate`.
    """
    return parse_constraint(text).evaluate(axes)


def _parse(text: str) -> ast.Expression:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "1 is 2" and the like: judged below, not printed
            return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deeply"
        raise DataError(f"constraint '{text}' is not an expression: {reason}") from error


def _is_plain_value(node: ast.AST) -> bool:
    return not isinstance(node, ast.Constant) or type(node.value) in (int, bool)


class _Evaluator:
    def __init__(self, text: str, axes: Mapping[str, int]) -> None:
        self._text = text
        self._axes = axes

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self._axis(node.id)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BoolOp):
            return self._logic(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        raise self._error(f"has {type(node).__name__}, which is not allowed")

    def _axis(self, name: str) -> int:
        if name not in self._axes:
            raise self._error(f"needs axis '{name}'; given are {', '.join(self._axes) or 'none'}")
        return self._axes[name]

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for operation, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            if not _COMPARE[type(operation)](left, right):
                return False
            left = right
        return True

    def _logic(self, node: ast.BoolOp) -> Value:
        values = (self.value(part) for part in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not operand
        return -operand if isinstance(node.op, ast.USub) else +operand

    def _arithmetic(self, node: ast.BinOp) -> int:
        left, right = int(self.value(node.left)), int(self.value(node.right))
        if isinstance(node.op, ast.Pow) and not 0 <= right <= MAX_BITS:
            raise self._error(f"has the exponent {right}; 0 to {MAX_BITS} are allowed")
        if isinstance(node.op, (ast.Pow, ast.Mult)) and self._bits(node.op, left, right) > MAX_BITS:
            raise self._error(f"has a result of more than {MAX_BITS} bits")
        try:
            return _ARITHMETIC[type(node.op)](left, right)
        except ZeroDivisionError as error:
            raise self._error("divides by zero") from error

    @staticmethod
    def _bits(operation: ast.operator, left: int, right: int) -> int:
        if isinstance(operation, ast.Pow):
            return left.bit_length() * right
        return left.bit_length() + right.bit_length()

    def _error(self, problem: str) -> DataError:
        return DataError(f"constraint '{self._text}' {problem}")

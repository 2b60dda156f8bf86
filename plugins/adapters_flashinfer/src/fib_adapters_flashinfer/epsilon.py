"""Which epsilon a definition has that does not take one as an input."""

from __future__ import annotations

import ast
import functools
import math
import re
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data import Definition

DEFAULT_EPS = 1e-6
"""FlashInfer's default, and what a definition means that does not say which epsilon it has."""

OTHER_EPS = "eps is not the definition's"
"""Reason: a call with another epsilon is another computation."""

_TAG = "eps:"
_INPUT = "eps"
# Configurations keep epsilons as float32 now and then, which is off by 6e-8 of the value at most.
_TOLERANCE = 1e-6
# "rms_eps", "epsilon", "rmsEps", but not "steps".
_EPSILON = re.compile(r"(?:^|[^a-zA-Z])(?i:eps(?:ilon)?)(?![a-zA-Z])|[a-z]Eps(?:ilon)?(?![a-z])")
_ROOTS = ("rsqrt", "sqrt")
_NORMS = ("rms_norm", "layer_norm", "group_norm")


def eps_problem(definition: Definition, eps: float) -> Optional[str]:
    """Return why a call with this epsilon is none of a definition's; None if it is.

    Parameters
    ----------
    definition : Definition
        See `epsilon_of`. One that has an input ``eps`` takes any.
    eps : float
        Of the call.
    """
    if takes_eps(definition):
        return None
    known = epsilon_of(definition)
    return None if known is not None and same_eps(eps, known) else OTHER_EPS


def takes_eps(definition: Definition) -> bool:
    """Return whether the epsilon is an input of a definition."""
    return _INPUT in definition.inputs


def same_eps(eps: float, known: float) -> bool:
    """Return whether two epsilons are the same number, perhaps rounded to float32."""
    return eps == known or math.isclose(eps, known, rel_tol=_TOLERANCE)


def epsilon_of(definition: Definition) -> Optional[float]:
    """Return the epsilon that a definition has, which has no such input.

    It is what a tag says (``"eps:1e-5"``), else the one number that the reference uses as an
    epsilon, else FlashInfer's default. None if the reference uses several, and no tag decides.
    """
    for tag in definition.tags or ():
        if tag.startswith(_TAG):
            try:
                return float(tag[len(_TAG) :])
            except ValueError:
                continue
    found = reference_epsilons(definition.reference or "")
    if len(found) > 1:
        return None
    return next(iter(found), DEFAULT_EPS)


@functools.lru_cache(maxsize=256)
def reference_epsilons(source: str) -> frozenset[float]:
    """Return the numbers that the code of a reference uses as an epsilon.

    These are what a name with the word "eps" or "epsilon" in it is set to, positional numbers that
    torch's norms are called with, and numbers that are added within the argument of ``rsqrt`` or
    ``sqrt``. Nothing if it is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    found = [number for node in ast.walk(tree) for number in _epsilons_at(node)]
    return frozenset(number for number in found if 0 < number < 1)


def _epsilons_at(node: ast.AST) -> list[float]:
    if isinstance(node, ast.Assign):
        return _numbers([node.value]) if any(map(_is_eps, node.targets)) else []
    if isinstance(node, ast.AnnAssign):
        return _numbers([node.value]) if _is_eps(node.target) else []
    if isinstance(node, ast.arguments):
        return _numbers([value for name, value in _defaults(node) if _EPSILON.search(name)])
    if isinstance(node, ast.Call):
        return _given(node)
    return []


def _given(call: ast.Call) -> list[float]:
    """Return the epsilons among the arguments of a call."""
    named = [each.value for each in call.keywords if _EPSILON.search(each.arg or "")]
    function = _name(call.func)
    if function in _NORMS:
        return _numbers([*named, *call.args])
    return _numbers(named) + (_added(call) if function in _ROOTS else [])


def _added(call: ast.Call) -> list[float]:
    """Return the numbers that are added under a root, be it a function or a method."""
    under = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    sums = [each for part in under for each in ast.walk(part) if isinstance(each, ast.BinOp)]
    return _numbers([side for s in sums if isinstance(s.op, ast.Add) for side in (s.left, s.right)])


def _defaults(arguments: ast.arguments) -> list[tuple[str, Optional[ast.expr]]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    given = positional[len(positional) - len(arguments.defaults) :]
    pairs: list[tuple[str, Optional[ast.expr]]] = [
        (each.arg, value) for each, value in zip(given, arguments.defaults, strict=True)
    ]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*pairs, *((each.arg, value) for each, value in named)]


def _is_eps(target: ast.AST) -> bool:
    return _EPSILON.search(_name(target)) is not None


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _numbers(nodes: Sequence[Optional[ast.expr]]) -> list[float]:
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [float(value) for value in values if isinstance(value, (int, float))]

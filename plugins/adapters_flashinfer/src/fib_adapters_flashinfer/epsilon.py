"""Which epsilon a definition has that does not take one as an input."""

from __future__ import annotations

import ast
import functools
import math
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition

DEFAULT_EPS = 1e-6
"""FlashInfer's default, and what a definition means that does not say which epsilon it has."""

OTHER_EPS = "eps is not the definition's"
"""Reason: a call with another epsilon is another computation."""

_TAG = "eps:"
# Configurations keep epsilons as float32 now and then, which is off by 6e-8 of the value at most.
_TOLERANCE = 1e-6
_LARGEST = 0.01  # of numbers that are taken for an epsilon


def takes_eps(definition: Definition) -> bool:
    """Return whether the epsilon is an input of a definition."""
    return "eps" in definition.inputs


def same_eps(eps: float, known: Optional[float]) -> bool:
    """Return whether two epsilons are the same number, perhaps rounded to float32."""
    return known is not None and (eps == known or math.isclose(eps, known, rel_tol=_TOLERANCE))


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
    return None if len(found) > 1 else next(iter(found), DEFAULT_EPS)


@functools.lru_cache(maxsize=256)
def reference_epsilons(source: str) -> frozenset[float]:
    """Return the numbers in the code of a reference that can be an epsilon: those up to 0.01.

    But for arguments of another name, such as ``atol=1e-3``. Nothing if it is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    nodes = list(ast.walk(tree))
    others = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.keyword) and "eps" not in (node.arg or "").lower()
    }
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and 0 < node.value <= _LARGEST
        and id(node) not in others
    )

"""Parameters of a test whose product is too large: each two values meet in some case."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def pairwise(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize with cases in which every two values of different parameters meet.

    As stacked ``parametrize`` marks do, of which the cases are some. Taken greedily: of all cases
    left, the one with the most pairs that are new. The same every time.
    """
    names = list(values)
    cases = list(product(*(range(len(values[name])) for name in names)))
    wanted = {pair for case in cases for pair in _pairs(case)}
    chosen = []
    while wanted:
        best = max(cases, key=lambda case: sum(pair in wanted for pair in _pairs(case)))
        chosen.append(best)
        wanted.difference_update(_pairs(best))
    rows = [
        tuple(values[name][at] for name, at in zip(names, case, strict=True)) for case in chosen
    ]
    return pytest.mark.parametrize(names, rows)


def _pairs(case: tuple[int, ...]) -> list[Any]:
    return list(combinations(enumerate(case), 2))

"""The layers of validation, each of which builds on those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYERS = {
    "layout": ("layout",),
    "definition": ("definitions",),
    "workload": ("workloads", "blobs"),
    "solution": ("solutions",),
    "trace": ("traces",),
    "baseline": ("baseline",),
    "benchmark": ("benchmark",),
}
"""The checks of each layer."""

_OF_FILES = frozenset({"layout", "definition", "solution"})


def layer_of(check: str) -> str:
    """Return the layer that a check belongs to."""
    return next(layer for layer, checks in LAYERS.items() if check in checks)


def chosen_checks(layers: Optional[Iterable[str]]) -> frozenset[str]:
    """Return the names of the checks of some layers; of all for None.

    Raises
    ------
    UnknownNameError
        If there is no such layer.
    """
    names = tuple(LAYERS) if layers is None else tuple(layers)
    unknown = tuple(name for name in names if name not in LAYERS)
    if unknown:
        raise UnknownNameError(
            f"there is no layer {unknown[0]!r}", hint=f"there are: {', '.join(LAYERS)}"
        )
    return frozenset(check for name in names for check in LAYERS[name])


def needs_records(checks: frozenset[str]) -> bool:
    """Return whether workloads and traces have to be read for these checks."""
    return any(layer_of(check) not in _OF_FILES for check in checks)

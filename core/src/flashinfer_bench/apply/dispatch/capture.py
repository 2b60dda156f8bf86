"""What a CUDA graph needs for ever.

A graph replays launches of kernels: the code of a kernel, and whatever its module holds, must be
there as long as the graph is. Nobody tells how long that is, so a target that has served tensors on
a GPU is never let go. There are no more of them than solutions that were built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashinfer_bench.apply.dispatch.target import Target

_kept: dict[int, tuple[Any, ...]] = {}


def keep_for_ever(target: Target) -> None:
    """Keep the function of a target, and the build that it is part of."""
    _kept[id(target.function)] = (target.function, target.owner)


def is_kept(owner: object) -> bool:
    """Return whether a build must not be cleaned up, as a graph may have captured its kernels."""
    return any(kept is owner for _, kept in list(_kept.values()))

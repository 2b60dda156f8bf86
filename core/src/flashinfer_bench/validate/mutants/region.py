"""Right values in wrong places, and places that were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from flashinfer_bench.validate.mutants.case import Case, Mutation

_TILE = 64
_SHARE = 8  # of an axis that is shorter than eight tiles an eighth is left out, at least 1


def transposed(case: Case) -> Iterator[Mutation]:
    """Exchange two axes of one length, as a wrong stride does."""
    for index, right in enumerate(case.right):
        pair = _equal_axes(tuple(right.shape))
        if pair is not None:
            yield case.with_output(index, right.transpose(*pair).contiguous())


def _equal_axes(shape: tuple[int, ...]) -> Optional[tuple[int, int]]:
    for last in range(len(shape) - 1, 0, -1):
        for other in range(last - 1, -1, -1):
            if shape[last] == shape[other] > 1:
                return other, last
    return None


def dropped_tile(case: Case) -> Iterator[Mutation]:
    """Leave out the last tile, as a grid that was rounded down does."""
    for index, right in enumerate(case.right):
        axes = [axis for axis, size in enumerate(right.shape) if size > 1][-2:]
        if axes:
            value = _editable(right)
            tile = value
            for axis in axes:
                length = tail_of(value.shape[axis])
                tile = tile.narrow(axis, value.shape[axis] - length, length)
            tile.zero_()
            yield case.with_output(index, value.view(right.dtype))


def tail_of(size: int) -> int:
    """Return how much of the end of an axis a mutant leaves out: a tile, or less of short ones."""
    return min(_TILE, max(1, size // _SHARE))


def off_by_one(case: Case) -> Iterator[Mutation]:
    """Move everything by one row, or by one element where there is only one row."""
    for index, right in enumerate(case.right):
        axis = next((axis for axis, size in enumerate(right.shape) if size > 1), None)
        if axis is not None:
            yield case.with_output(index, _editable(right).roll(1, axis).view(right.dtype))


def wrong_mask(case: Case) -> Iterator[Mutation]:
    """Blank what lies above, or below, the diagonal of an output seen as rows and columns."""
    import torch

    for index, right in enumerate(case.right):
        if right.dim() < 2 or not right.numel() or right.numel() == right.shape[-1]:
            continue
        columns = right.shape[-1]
        rows = right.numel() // columns
        across = torch.arange(columns)[None, :] * rows
        down = torch.arange(rows)[:, None] * columns
        for variant, outside in (("above", across > down), ("below", across < down)):
            value = _editable(right)
            value.view(rows, columns).masked_fill_(outside, 0)
            yield case.with_output(index, value.view(right.dtype), variant)


def _editable(right: torch.Tensor) -> torch.Tensor:
    """Return a copy; of types with which torch can do little, their bits."""
    import torch

    copy = right.contiguous().clone()
    return copy.view(torch.uint8) if copy.element_size() == 1 else copy

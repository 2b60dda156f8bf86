"""How the elements of an input are rotated and mixed; with integers only, so the same everywhere.

Elements are handled as *units*: signed or unsigned integers of their size, in a row.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Way = Literal["signs", "columns", "rotate", "move", "fixed"]

_PATTERN = 1 << 18  # elements whose signs are changed by one piece of the pattern
_MOST_GROUPS = 4  # ranges of columns
_SIGN_BITS = {"complex64": (31, 63), "float4": (3, 7)}  # two numbers in one unit


def is_tensor(value: Any) -> bool:
    """Return whether an input is a tensor, and not a Python scalar."""
    return hasattr(value, "element_size")


def units_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor in a row, as integers that every device copies."""
    import torch

    flat = tensor.view(-1)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if flat.element_size() in integer:
        return flat.view(integer[flat.element_size()])
    return flat.view(torch.int64).view(flat.numel(), -1)  # complex128


def typed(units: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return units as a tensor of the shape and type of another one; shares their memory."""
    return units.reshape(-1).view(like.dtype).view(like.shape)


def turned(into: torch.Tensor, units: torch.Tensor, turn: int) -> None:
    """Write `units` into other memory, rotated: what was at place `turn` comes first."""
    turn %= len(units)
    into[: len(units) - turn].copy_(units[turn:])
    into[len(units) - turn :].copy_(units[:turn])


def mix_into(shown: torch.Tensor, value: torch.Tensor, way: Way, mix: int) -> None:
    """Change what one call is to see of an input, in place.

    Parameters
    ----------
    shown : torch.Tensor
        Units, as many as `value` has; for ``signs`` what is to be changed.
    value : torch.Tensor
        The input, contiguous, on the same device.
    way : str
        ``signs`` or ``columns``; nothing is done for the others.
    mix : int
        Chooses signs or columns; 0 leaves them alone.
    """
    if way == "signs" and mix:
        _change_signs(shown, value.dtype, mix)
    elif way == "columns" and mix:
        _mix_columns(shown, units_of(value), value.shape[0], mix)


def _mix_columns(into: torch.Tensor, units: torch.Tensor, rows: int, mix: int) -> None:
    target, source = into.view(rows, -1), units.view(rows, -1)
    columns = source.shape[1]
    rng = random.Random(mix)
    cuts = sorted(rng.sample(range(1, columns), min(columns, _MOST_GROUPS) - 1))
    for first, last in pairwise((0, *cuts, columns)):
        turn = rng.randrange(1, rows)
        target[: rows - turn, first:last].copy_(source[turn:, first:last])
        target[rows - turn :, first:last].copy_(source[:turn, first:last])


def _change_signs(into: torch.Tensor, dtype: torch.dtype, mix: int) -> None:
    flat = into.view(-1)
    pattern = _sign_pattern(str(flat.device), str(dtype), flat.dtype)
    rng = random.Random(mix)
    for start in range(0, flat.numel(), _PATTERN):
        piece = flat[start : start + _PATTERN]
        offset = rng.randrange(_PATTERN)
        piece.bitwise_xor_(pattern[offset : offset + piece.numel()])


@lru_cache(maxsize=16)
def _sign_pattern(device: str, dtype: str, integer: torch.dtype) -> torch.Tensor:
    """Return random bits, in the places where elements of a type keep their signs."""
    import torch

    width = 8 * integer.itemsize
    places = next((_SIGN_BITS[name] for name in _SIGN_BITS if name in dtype), (width - 1,))
    generator = torch.Generator().manual_seed(21)
    pattern = torch.zeros(2 * _PATTERN, dtype=torch.int64)
    for place in places:
        pattern |= torch.randint(2, pattern.shape, generator=generator) << place
    if integer.is_signed and width < 64:  # the signed number of the same bits
        pattern -= (pattern >> (width - 1)) << width
    return pattern.to(integer).to(device)

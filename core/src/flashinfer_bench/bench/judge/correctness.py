"""Comparing a tensor with the reference, element by element.

The rule of the format: an element passes if its absolute error is at most ``atol`` **or** its
relative error is at most ``rtol``. Three things are stricter than these tolerances:

* NaN and ±inf must stand in the same places, with the same sign; a NaN in the reference is met by
  NaN only. Such a mismatch fails whatever share of the elements has to match.
* Integers and booleans must be equal.
* Shapes are equal before anything is compared (see `structure`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

#: Denominator of the relative error where the reference is (nearly) zero.
RELATIVE_FLOOR = 1e-8
_CHUNK = 1 << 21  # elements compared at once: bounds the memory that float64 copies take


@dataclass(frozen=True)
class Mismatch:
    """The first element that failed.

    Attributes
    ----------
    index : tuple of int
        Its place; empty for a scalar.
    actual, expected : float
        Its values.
    """

    index: tuple[int, ...]
    actual: float
    expected: float


@dataclass(frozen=True)
class Comparison:
    """How one output compares with the reference.

    Attributes
    ----------
    elements : int
        Number of elements.
    matched : int
        How many of them passed.
    max_absolute_error : float
        Largest ``|actual - expected|``; inf if NaN or ±inf stand in different places.
    max_relative_error : float
        Largest ``|actual - expected| / max(|expected|, 1e-8)``; inf likewise.
    nonfinite_mismatches : int
        Elements where only one side is NaN or ±inf, or they differ in kind or sign.
    first_failing : Mismatch, optional
        The first element, in row-major order, that did not pass.
    """

    elements: int
    matched: int
    max_absolute_error: float
    max_relative_error: float
    nonfinite_mismatches: int
    first_failing: Optional[Mismatch]

    @property
    def matched_ratio(self) -> float:
        """Share of the elements that passed; 1.0 when there are none."""
        return self.matched / self.elements if self.elements else 1.0

    def passes(self, required_matched_ratio: float) -> bool:
        """Return whether enough elements passed and no NaN or ±inf is out of place."""
        return self.nonfinite_mismatches == 0 and self.matched_ratio >= required_matched_ratio


@dataclass(frozen=True)
class _Chunk:
    """Counts over some consecutive elements."""

    matched: int
    max_absolute_error: float
    max_relative_error: float
    nonfinite_mismatches: int
    first_failing: Optional[int]


def compare(
    actual: torch.Tensor, expected: torch.Tensor, *, atol: float, rtol: float
) -> Comparison:
    """Compare two CPU tensors of one shape.

    Parameters
    ----------
    actual : torch.Tensor
        What the solution returned.
    expected : torch.Tensor
        What the reference returned. Its dtype may be another one of the same kind.
    atol, rtol : float
        Tolerances for floating-point outputs; integers and booleans must be equal.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    left, right = _flat(actual), _flat(expected)
    chunks = [
        _compare_chunk(left[start:stop], right[start:stop], atol, rtol)
        for start, stop in _spans(left.numel())
    ]
    return Comparison(
        elements=left.numel(),
        matched=sum(chunk.matched for chunk in chunks),
        max_absolute_error=max((chunk.max_absolute_error for chunk in chunks), default=0.0),
        max_relative_error=max((chunk.max_relative_error for chunk in chunks), default=0.0),
        nonfinite_mismatches=sum(chunk.nonfinite_mismatches for chunk in chunks),
        first_failing=_first_mismatch(chunks, actual, left, right),
    )


def _spans(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, _CHUNK):
        yield start, min(start + _CHUNK, elements)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in a row, in a type that torch can compare on the CPU."""
    import torch

    flat = unpack_float4(tensor.detach()).reshape(-1)
    is_float8 = flat.is_floating_point() and flat.element_size() == 1
    return flat.to(torch.float32) if is_float8 else flat


def unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a packed float4 tensor as float32; any other tensor as it is.

    Two values share a byte, the first one in the low half, so that the last dimension doubles.
    """
    import torch

    packed = getattr(torch, "float4_e2m1fn_x2", None)
    if packed is None or tensor.dtype != packed:
        return tensor
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    table = torch.tensor(magnitudes + [-value for value in magnitudes])
    codes = tensor.contiguous().view(torch.uint8)
    return torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(-2)


def _compare_chunk(left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float) -> _Chunk:
    import torch

    if left.dtype == right.dtype and torch.equal(left, right):  # NaN is not equal to itself
        return _Chunk(left.numel(), 0.0, 0.0, 0, None)
    if left.is_floating_point() or right.is_floating_point():
        return _compare_floats(left.to(torch.float64), right.to(torch.float64), atol, rtol)
    return _compare_exactly(left, right)


def _compare_floats(left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float) -> _Chunk:
    finite = left.isfinite() & right.isfinite()
    same = (left == right) | (left.isnan() & right.isnan())
    out_of_place = int((~finite & ~same).sum())
    absolute = (left - right).abs_().masked_fill_(~finite, 0.0)
    relative = absolute / right.abs().clamp_(min=RELATIVE_FLOOR)
    relative.masked_fill_(~finite, 0.0)
    passed = ((absolute <= atol) | (relative <= rtol)) & finite | same
    worst = (math.inf, math.inf) if out_of_place else (float(absolute.max()), float(relative.max()))
    return _Chunk(int(passed.sum()), *worst, out_of_place, _first_false(passed))


def _compare_exactly(left: torch.Tensor, right: torch.Tensor) -> _Chunk:
    import torch

    # A common integer type: comparing uint8 with int8 as they are would wrap around.
    passed = left.to(torch.int64) == right.to(torch.int64)
    absolute = (left.to(torch.float64) - right.to(torch.float64)).abs_()
    # Beyond 2**53 two different integers may be the same float; they are at least 1 apart.
    absolute = absolute.clamp_(min=1.0).masked_fill_(passed, 0.0)
    relative = absolute / right.to(torch.float64).abs().clamp_(min=RELATIVE_FLOOR)
    worst = float(absolute.max()), float(relative.max())
    return _Chunk(int(passed.sum()), *worst, 0, _first_false(passed))


def _first_false(passed: torch.Tensor) -> Optional[int]:
    import torch

    # argmin of booleans as bytes: the first 0, without listing all of them
    position = int(passed.to(torch.uint8).argmin())
    return None if bool(passed[position]) else position


def _first_mismatch(
    chunks: list[_Chunk], shaped: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> Optional[Mismatch]:
    for number, chunk in enumerate(chunks):
        if chunk.first_failing is not None:
            flat = number * _CHUNK + chunk.first_failing
            shape = tuple(unpack_float4(shaped).shape)
            return Mismatch(_unravel(flat, shape), _number(left[flat]), _number(right[flat]))
    return None


def _number(element: torch.Tensor) -> Any:
    """Return an element as a Python number: an integer stays one."""
    return float(element) if element.is_floating_point() else element.item()


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for length in reversed(shape):
        flat, place = divmod(flat, length)
        index.append(place)
    return tuple(reversed(index))

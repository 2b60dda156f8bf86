"""Comparing a tensor with the reference, element by element.

The rule of the format: an element passes if its absolute error is at most ``atol`` **or** its
relative error is at most ``rtol``. Three things are stricter than these tolerances:

* NaN and ±inf must stand in the same places, with the same sign; a NaN in the reference is met by
  NaN only. Such a mismatch fails whatever share of the elements has to match.
* Integers and booleans must be equal.
* Shapes are equal before anything is compared (see `structure`).

0.0 and -0.0 are equal. Of a complex number each part is an element. Errors are computed in float64,
in pieces that fit into a processor's cache, so that a comparison reads each tensor once.
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
_CHUNK = (
    1 << 15
)  # elements compared at once, in one thread: two such pieces in float64 take 512 KiB


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

    def passes(self, required_matched_ratio: float, max_error_cap: float = math.inf) -> bool:
        """Return whether enough elements passed, and none of the others is intolerable.

        Parameters
        ----------
        required_matched_ratio : float
            Share of the elements that must have passed.
        max_error_cap : float
            The largest absolute error that any element may have.
        """
        if self.nonfinite_mismatches or self.max_absolute_error > max_error_cap:
            return False
        return self.matched_ratio >= required_matched_ratio


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
    left, right = _Elements(actual), _Elements(expected)
    if left.shape != right.shape:
        raise ValueError(f"shapes differ: {left.shape} and {right.shape}")
    chunks = [
        _compare_chunk(left.between(start, stop), right.between(start, stop), atol, rtol)
        for start, stop in _spans(left.count)
    ]
    return Comparison(
        elements=left.count,
        matched=sum(chunk.matched for chunk in chunks),
        max_absolute_error=max((chunk.max_absolute_error for chunk in chunks), default=0.0),
        max_relative_error=max((chunk.max_relative_error for chunk in chunks), default=0.0),
        nonfinite_mismatches=sum(chunk.nonfinite_mismatches for chunk in chunks),
        first_failing=_first_mismatch(chunks, left, right),
    )


def pairs(
    actual: torch.Tensor, expected: torch.Tensor, *, most: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield elements of two tensors of one shape, piece by piece, in comparable types.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors.
    most : int
        Number of pieces. Where there are more of them, they are taken at equal distances.
    """
    left, right = _Elements(actual), _Elements(expected)
    pieces = list(_spans(left.count))
    for start, stop in pieces[:: -(-len(pieces) // most) or 1]:
        yield left.between(start, stop), right.between(start, stop)


def _spans(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, _CHUNK):
        yield start, min(start + _CHUNK, elements)


class _Elements:
    """The elements of a tensor in a row, in types that torch can compare on the CPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch

        plain = tensor.detach()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        self.packed = plain.dtype == getattr(torch, "float4_e2m1fn_x2", None)
        self._is_float8 = plain.is_floating_point() and plain.element_size() == 1
        shape = tuple(plain.shape)
        self.shape = (*shape[:-1], 2 * shape[-1]) if self.packed else shape
        self._row = plain.contiguous().view(torch.uint8) if self.packed else plain
        self._row = self._row.reshape(-1)
        self.count = math.prod(self.shape)

    def between(self, start: int, stop: int) -> torch.Tensor:
        """Return some of the elements."""
        import torch

        if self.packed:
            whole = _float4_values(self._row[start // 2 : (stop + 1) // 2])
            return whole[start % 2 : start % 2 + stop - start]
        part = self._row[start:stop]
        return part.to(torch.float32) if self._is_float8 else part


def unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a packed float4 tensor as float32; any other tensor as it is.

    Two values share a byte, the first one in the low half, so that the last dimension doubles.
    """
    elements = _Elements(tensor)
    if not elements.packed:
        return tensor
    return elements.between(0, elements.count).reshape(elements.shape)


def _float4_values(codes: torch.Tensor) -> torch.Tensor:
    import torch

    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = torch.tensor(magnitudes + [-value for value in magnitudes])
    both = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)
    return both.index_select(0, codes.int()).flatten()


def _bits(part: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers, so that a NaN is equal to itself."""
    import torch

    sizes = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    return part.view(sizes[part.element_size()])


def _compare_chunk(left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float) -> _Chunk:
    import torch

    if left.dtype == right.dtype and torch.equal(_bits(left), _bits(right)):
        return _Chunk(left.numel(), 0.0, 0.0, 0, None)
    if not (left.is_floating_point() or right.is_floating_point()):
        return _compare_exactly(left, right)
    absolute, relative = errors(left, right)
    worst = float(absolute.amax()), float(relative.amax())
    if not math.isfinite(worst[0]):  # of NaN and of inf the largest is NaN or inf
        return _compare_any_floats(left, right, atol, rtol)
    if worst[0] <= atol or worst[1] <= rtol:
        return _Chunk(left.numel(), *worst, 0, None)
    passed = (absolute <= atol) | (relative <= rtol)
    return _Chunk(int(torch.count_nonzero(passed)), *worst, 0, _first_false(passed))


def errors(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the absolute and the relative error of each element, in float64.

    Parameters
    ----------
    left, right : torch.Tensor
        What is, and what it should be.
    """
    import torch

    absolute = left.to(torch.float64, copy=True)
    expected = right.to(torch.float64, copy=True)
    absolute.sub_(expected).abs_()
    return absolute, torch.div(absolute, expected.abs_().clamp_(min=RELATIVE_FLOOR), out=expected)


def _compare_any_floats(
    left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float
) -> _Chunk:
    """Compare floats of which some are NaN or ±inf, or so far apart that float64 overflows."""
    finite = left.isfinite() & right.isfinite()
    same = (left == right) | (left.isnan() & right.isnan())
    out_of_place = int((~finite & ~same).sum())
    absolute, relative = (each.masked_fill_(~finite, 0.0) for each in errors(left, right))
    passed = ((absolute <= atol) | (relative <= rtol)) & finite | same
    worst = (math.inf, math.inf) if out_of_place else (float(absolute.max()), float(relative.max()))
    return _Chunk(int(passed.sum()), *worst, out_of_place, _first_false(passed))


def _compare_exactly(left: torch.Tensor, right: torch.Tensor) -> _Chunk:
    import torch

    # A common integer type: comparing uint8 with int8 as they are would wrap around.
    wide = left.to(torch.int64), right.to(torch.int64)
    passed = wide[0] == wide[1]
    if (left.dtype == torch.uint64) != (right.dtype == torch.uint64):
        # What does not fit into int64 has wrapped around to a negative number.
        passed &= (wide[0] >= 0) & (wide[1] >= 0)
    absolute = (left.to(torch.float64) - right.to(torch.float64)).abs_()
    # Beyond 2**53 two different integers may be the same float; they are at least 1 apart.
    absolute = absolute.clamp_(min=1.0).masked_fill_(passed, 0.0)
    relative = absolute / right.to(torch.float64).abs().clamp_(min=RELATIVE_FLOOR)
    worst = float(absolute.max()), float(relative.max())
    return _Chunk(int(passed.sum()), *worst, 0, _first_false(passed))


def _first_false(passed: torch.Tensor) -> Optional[int]:
    import torch

    # argmin of booleans as bytes: the first 0, without listing all of them
    position = int(passed.view(torch.uint8).argmin())
    return None if bool(passed[position]) else position


def _first_mismatch(chunks: list[_Chunk], left: _Elements, right: _Elements) -> Optional[Mismatch]:
    for number, chunk in enumerate(chunks):
        if chunk.first_failing is not None:
            flat = number * _CHUNK + chunk.first_failing
            values = (_number(side.between(flat, flat + 1)[0]) for side in (left, right))
            return Mismatch(_unravel(flat, left.shape), *values)
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

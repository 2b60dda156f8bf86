"""Comparing outputs with the reference: number, shape and dtype, then element by element.

The rule of the format: an element passes if its absolute error is at most ``atol`` **or** its
relative error is at most ``rtol``. Three things are stricter than these tolerances:

* NaN and ±inf must stand in the same places, with the same sign; a NaN in the reference is met by
  NaN only. Such a mismatch fails whatever share of the elements has to match.
* Integers and booleans must be equal.
* Shapes are equal before anything is compared (see `find_problem`).

0.0 and -0.0 are equal. Of a complex number each part is an element. Errors are computed in float64,
in pieces that fit into a processor's cache, so that a comparison reads each tensor once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import Definition, EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch


#: Denominator of the relative error where the reference is (nearly) zero.
RELATIVE_FLOOR = 1e-8
# Elements compared at once, in one thread: two such pieces in float64 take 512 KiB.
_CHUNK = 1 << 15
_DEVICE_CHUNK = 1 << 22  # on a GPU each piece costs some launches, whatever its size
# Types of Python scalars that may stand for an element of each kind.
_SCALARS_OF = {"boolean": (bool,), "integer": (int,), "floating point": (int, float)}


@dataclass(frozen=True)
class OutputSpec:
    """What one output has to be.

    Attributes
    ----------
    name : str
        Its name in the definition.
    shape : tuple of int
        Its shape; empty for a scalar.
    dtype : torch.dtype
        Its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Problem:
    """Why outputs cannot be compared with the reference at all."""

    status: EvaluationStatus
    message: str


def output_specs(definition: Definition, axes: Mapping[str, int]) -> tuple[OutputSpec, ...]:
    """Return what the outputs of `definition` have to be, in the order declared.

    Parameters
    ----------
    definition : Definition
        The definition.
    axes : mapping
        Value of every variable axis.
    """
    from flashinfer_bench.tensors import to_torch_dtype

    shapes = definition.get_output_shapes(dict(axes))
    return tuple(
        OutputSpec(name, tuple(shape or ()), to_torch_dtype(spec.dtype))
        for (name, spec), shape in zip(definition.outputs.items(), shapes, strict=True)
    )


def find_problem(
    outputs: Sequence[Any], specs: Sequence[OutputSpec], *, exact_dtype: bool = True
) -> Optional[Problem]:
    """Return the first thing that is wrong with the structure of `outputs`, or None.

    Parameters
    ----------
    outputs : sequence
        Tensors and Python scalars.
    specs : sequence of OutputSpec
        What they have to be.
    exact_dtype : bool
        If False, another dtype of the same kind will do: a reference may compute in a wider type
        than it declares.
    """
    import torch

    if len(outputs) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        message = f"{len(outputs)} outputs instead of {len(specs)} ({names})"
        return Problem(EvaluationStatus.INCORRECT_SHAPE, message)
    for value, spec in zip(outputs, specs, strict=True):
        if isinstance(value, torch.Tensor):
            problem = _tensor_problem(value, spec, exact_dtype)
        else:
            problem = _scalar_problem(value, spec)
        if problem is not None:
            return problem
    return None


def as_tensors(outputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return `outputs`, in which `find_problem` found none, with Python scalars as 0-d tensors."""
    import torch

    dtypes = [torch.float64 if isinstance(value, float) else None for value in outputs]
    return [
        torch.as_tensor(value, dtype=dtype) for value, dtype in zip(outputs, dtypes, strict=True)
    ]


def _kind(dtype: torch.dtype) -> str:
    import torch

    if dtype == torch.bool:
        return "boolean"
    if dtype.is_complex:
        return "complex"
    return "floating point" if dtype.is_floating_point else "integer"


def _tensor_problem(value: torch.Tensor, spec: OutputSpec, exact: bool) -> Optional[Problem]:
    if tuple(value.shape) != spec.shape:
        message = (
            f"output {spec.name!r} has shape {list(value.shape)} instead of {list(spec.shape)}"
        )
        return Problem(EvaluationStatus.INCORRECT_SHAPE, message)
    if value.dtype == spec.dtype or (not exact and _kind(value.dtype) == _kind(spec.dtype)):
        return None
    message = f"output {spec.name!r} has dtype {value.dtype} instead of {spec.dtype}"
    return Problem(EvaluationStatus.INCORRECT_DTYPE, message)


def _scalar_problem(value: Any, spec: OutputSpec) -> Optional[Problem]:
    """Check a Python scalar, which may stand for a 0-d tensor of its kind."""
    named = f"output {spec.name!r} is a Python {type(value).__name__}"
    if spec.shape:
        message = f"{named} instead of a tensor of shape {list(spec.shape)}"
        return Problem(EvaluationStatus.INCORRECT_SHAPE, message)
    allowed = type(value) in _SCALARS_OF.get(_kind(spec.dtype), ())
    if allowed and (isinstance(value, float) or -(2**63) <= value < 2**63):  # torch can hold it
        return None
    return Problem(EvaluationStatus.INCORRECT_DTYPE, f"{named} instead of {spec.dtype}")


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
    import torch

    left, right = plain(actual), plain(expected)
    if left.shape != right.shape:
        raise ValueError(f"shapes differ: {left.shape} and {right.shape}")
    matched, absolute, relative, out_of_place = 0, 0.0, 0.0, 0
    first: Optional[Mismatch] = None
    for start, one, other in _pieces(left, right):
        passed, worst, odd = _compare_piece(one, other, atol, rtol)
        absolute, relative = max(absolute, worst[0]), max(relative, worst[1])
        out_of_place += odd
        if passed is None:
            matched += one.numel()
            continue
        matched += int(passed.sum())
        if first is None and not bool(passed.all()):
            place = passed.to(torch.uint8).argmin()  # the first 0
            index = _index_of(int(start + place), left.shape)
            first = Mismatch(index, one[place].item(), other[place].item())
    return Comparison(left.numel(), matched, absolute, relative, out_of_place, first)


def _index_of(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of an element by its place; torch's own function imports sympy."""
    found = []
    for size in reversed(shape):
        place, one = divmod(place, size)
        found.append(one)
    return tuple(reversed(found))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with an element for each number of `tensor`."""
    import torch

    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj())
    return unpack_float4(tensor.detach())


def _pieces(
    left: torch.Tensor, right: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield rows of elements, and where they begin.

    float8 becomes float32: torch cannot compare it on the CPU.
    """
    import torch

    rows = [side.reshape(-1) for side in (left, right)]
    size = _CHUNK if left.is_cpu else _DEVICE_CHUNK
    for start in range(0, left.numel(), size):
        pair = [row[start : start + size] for row in rows]
        for place, part in enumerate(pair):
            if part.is_floating_point() and part.element_size() == 1:
                pair[place] = part.to(torch.float32)
        yield start, pair[0], pair[1]


def unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a packed float4 tensor as float32; any other tensor as it is.

    Two values share a byte, the first one in the low half, so that the last dimension doubles.
    """
    import torch

    if tensor.dtype != getattr(torch, "float4_e2m1fn_x2", None):
        return tensor
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = torch.tensor(magnitudes + [-value for value in magnitudes])
    codes = tensor.contiguous().view(torch.uint8)
    both = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return values[both.int()]


def bits(part: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers, so that a NaN is equal to itself."""
    import torch

    sizes = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    return part.view(sizes[part.element_size()])


def _compare_piece(
    left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float
) -> tuple[Optional[torch.Tensor], tuple[float, float], int]:
    """Return which elements pass (None: all), the largest errors, and how many are out of place."""
    import torch

    if left.dtype == right.dtype and torch.equal(bits(left), bits(right)):
        return None, (0.0, 0.0), 0
    if not (left.is_floating_point() or right.is_floating_point()):
        return _compare_exactly(left, right)
    absolute, relative = errors(left, right)
    worst = float(absolute.amax()), float(relative.amax())
    if worst[0] <= atol or worst[1] <= rtol:
        return None, worst, 0
    passed = (absolute <= atol) | (relative <= rtol)
    if math.isfinite(worst[0]):
        return passed, worst, 0
    # NaN or ±inf, or so far apart that float64 overflows.
    finite = left.isfinite() & right.isfinite()
    same = (left == right) | (left.isnan() & right.isnan())
    out_of_place = int((~finite & ~same).sum())
    worst = math.inf, math.inf
    if not out_of_place:
        masked = [each.masked_fill_(~finite, 0.0) for each in (absolute, relative)]
        worst = float(masked[0].max()), float(masked[1].max())
    return passed & finite | same, worst, out_of_place


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


def _compare_exactly(
    left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, tuple[float, float], int]:
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
    return passed, (float(absolute.max()), float(relative.max())), 0

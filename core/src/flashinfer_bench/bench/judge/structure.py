"""Whether outputs have the declared number, shapes and dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition


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
    if len(outputs) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        message = f"{len(outputs)} outputs instead of {len(specs)} ({names})"
        return Problem(EvaluationStatus.INCORRECT_SHAPE, message)
    for value, spec in zip(outputs, specs, strict=True):
        if _is_tensor(value):
            problem = _tensor_problem(value, spec, exact_dtype)
        else:
            problem = _scalar_problem(value, spec)
        if problem is not None:
            return problem
    return None


def as_tensors(outputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return `outputs`, in which `find_problem` found none, with Python scalars as 0-d tensors."""
    return [value if _is_tensor(value) else _scalar_tensor(value) for value in outputs]


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _scalar_tensor(value: Any) -> torch.Tensor:
    import torch

    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return torch.tensor(value)


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
    kind = _kind(spec.dtype)
    if type(value) in _SCALARS_OF.get(kind, ()) and _fits(value):
        return None
    return Problem(EvaluationStatus.INCORRECT_DTYPE, f"{named} instead of {spec.dtype}")


def _fits(value: Any) -> bool:
    """Return whether torch can hold an integer."""
    return isinstance(value, float) or -(2**63) <= value < 2**63

"""Outputs that take no computing: zeros, a constant, a copied input, an earlier result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from flashinfer_bench.bench.correctness import OutputSpec
    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.data import Definition

_SAMPLE = 1 << 16  # elements that a median is taken of


@dataclass(frozen=True)
class Trivial:
    """What a solution could return for one output without computing it.

    Attributes
    ----------
    label : str
        What it is, for people.
    values : tuple of torch.Tensor
        For each trial, of the declared shape and dtype.
    is_constant : bool
        Whether it depends neither on the inputs nor on the trial.
    """

    label: str
    values: tuple[torch.Tensor, ...]
    is_constant: bool = False


def as_declared(value: torch.Tensor, spec: OutputSpec) -> torch.Tensor:
    """Return a reference's output, which may be of a wider type, as a solution has to return it."""
    return value if value.dtype == spec.dtype else value.to(spec.dtype)


def trivial_outputs(
    definition: Definition, trials: Sequence[Trial], index: int, spec: OutputSpec
) -> Iterator[Trivial]:
    """Yield what a solution could return for one output without computing it.

    Parameters
    ----------
    definition : Definition
        What is computed.
    trials : sequence of Trial
        Inputs and expected outputs.
    index : int
        Number of the output.
    spec : OutputSpec
        What it has to be.
    """
    expected = [trial.expected[index] for trial in trials]
    yield _constant("zeros", 0.0, len(trials), spec)
    for constant in _best_constants(expected):
        yield _constant(f"the constant {constant:g}", constant, len(trials), spec)
    for place, name in enumerate(definition.inputs):
        copies = [_copy(trial.inputs[place], spec) for trial in trials]
        values = tuple(copy for copy in copies if copy is not None)
        if len(values) == len(copies):
            yield Trivial(f"a copy of input {name!r}", values)
    if len(trials) > 1:
        stale = tuple(as_declared(expected[number - 1], spec) for number in range(len(trials)))
        yield Trivial("the result of another trial", stale)


def _constant(label: str, value: float, count: int, spec: OutputSpec) -> Trivial:
    import torch

    if _is_packed(spec.dtype):
        filled = torch.zeros(spec.shape, dtype=torch.uint8).view(spec.dtype)
    else:
        filled = torch.full(spec.shape, value, dtype=torch.float64).to(spec.dtype)
    return Trivial(label, (filled,) * count, is_constant=True)


def _best_constants(expected: Sequence[torch.Tensor]) -> list[float]:
    """Return the median and the mean of all trials' elements, if they say more than zeros do.

    Of a single element there is none: it is its own median.
    """
    import torch

    dtype = expected[0].dtype
    if _is_packed(dtype) or dtype.is_complex or sum(one.numel() for one in expected) < 2:
        return []
    rows = [one.reshape(-1) for one in expected]
    sample = torch.cat([row[:: row.numel() // _SAMPLE + 1].to(torch.float64) for row in rows])
    finite = sample[sample.isfinite()]
    if not finite.numel():
        return []
    found = float(finite.median()), float(finite.mean())
    values = found if dtype.is_floating_point else tuple(float(round(value)) for value in found)
    return list(dict.fromkeys(value for value in values if value))


def _copy(value: Any, spec: OutputSpec) -> Optional[torch.Tensor]:
    import torch

    if not isinstance(value, torch.Tensor) or tuple(value.shape) != spec.shape:
        return None
    if value.dtype == spec.dtype:
        return value
    if _is_packed(value.dtype) or _is_packed(spec.dtype):
        return None
    same_kind = value.is_floating_point() == spec.dtype.is_floating_point
    return value.to(spec.dtype) if same_kind else None


def _is_packed(dtype: torch.dtype) -> bool:
    import torch

    return dtype == getattr(torch, "float4_e2m1fn_x2", None)

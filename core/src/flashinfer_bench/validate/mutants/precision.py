"""Results of a precision that is too low."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.dtype_tolerances import precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from flashinfer_bench.validate.mutants.case import Case, Mutation

_COARSER = {
    "float64": "float32",
    "float32": "bfloat16",
    "float16": "float8_e4m3fn",
    "bfloat16": "float8_e4m3fn",
    "float8_e4m3fn": "float4_e2m1",
    "float8_e5m2": "float4_e2m1",
}
"""The next coarser type that a computation might use in place of each."""

_LARGEST = {"float8_e4m3fn": 448.0, "float4_e2m1": 6.0}
_FEWEST = 64  # elements: a few numbers may by chance be as good in a coarser type


def downcast(case: Case) -> Iterator[Mutation]:
    """Round an output to the next coarser type than its inputs and itself allow."""
    for index, (right, spec) in enumerate(zip(case.right, case.specs, strict=True)):
        if not spec.dtype.is_floating_point or right.numel() < _FEWEST:
            continue
        coarser = _COARSER.get(precision_of(case.definition, spec.name))
        value = None if coarser is None else _rounded(right, coarser)
        if value is not None:
            yield case.with_output(index, value, f"to {coarser}")


def _rounded(right: torch.Tensor, name: str) -> Optional[torch.Tensor]:
    """Return the values that a type can hold, scaled to its range if that is narrow."""
    import torch

    wide = right.to(torch.float32 if name != "float32" else torch.float64)
    if name not in _LARGEST:
        return wide.to(getattr(torch, name)).to(wide.dtype)
    finite = wide[wide.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if not largest:
        return None
    scale = largest / _LARGEST[name]
    low = _to_float4(wide / scale) if name == "float4_e2m1" else _to_float8(wide / scale)
    return torch.where(wide.isfinite(), low * scale, wide)


def _to_float8(wide: torch.Tensor) -> torch.Tensor:
    import torch

    return wide.to(torch.float8_e4m3fn).to(torch.float32)


def _to_float4(wide: torch.Tensor) -> torch.Tensor:
    import torch

    limits = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return values[torch.bucketize(wide.abs(), limits)] * wide.sign()

"""How large the errors of an output are, measured by the size of what was expected.

An element-wise tolerance says nothing about the elements that need not match, and little about
outputs that are small beside ``atol``. The root of the mean square (RMS) of the errors, divided by
that of the reference, has no such gap: zeros give 1, an independent result of the same size √2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.correctness import RELATIVE_FLOOR, unpack_float4

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data.tolerance import Tolerance

_CHUNK = 1 << 21  # elements measured at once: bounds the memory that float64 copies take


@dataclass(frozen=True)
class ErrorSize:
    """Errors of one output in units of the RMS of the reference.

    Attributes
    ----------
    relative_rms : float
        RMS of the errors.
    largest : float
        The largest error of a single element.
    """

    relative_rms: float
    largest: float


def error_size(
    actual: torch.Tensor, expected: torch.Tensor, *, beyond: Optional[Tolerance] = None
) -> ErrorSize:
    """Return how large the errors of `actual` are.

    Where the reference is NaN or ±inf nothing is measured: such elements have to be the same,
    which is for `compare` to find. If everything else is expected to be 0, errors are 0 or inf.

    Parameters
    ----------
    actual, expected : torch.Tensor
        Floating-point tensors of one shape, on the CPU.
    beyond : Tolerance, optional
        Count only errors of elements that do not match within its `atol` or `rtol`.
    """
    left, right = (unpack_float4(each.detach()).reshape(-1) for each in (actual, expected))
    errors = size = largest = 0.0
    count = 0
    for start in range(0, right.numel(), _CHUNK):
        wanted, error = _errors(left[start : start + _CHUNK], right[start : start + _CHUNK], beyond)
        errors += float(error.square().sum())
        size += float(wanted.square().sum())
        largest = max(largest, float(error.max()))
        count += wanted.numel()
    if errors == 0.0:
        return ErrorSize(0.0, 0.0)
    if size == 0.0:
        return ErrorSize(math.inf, math.inf)
    return ErrorSize(math.sqrt(errors / size), largest * math.sqrt(count / size))


def worst_row_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the RMS of the errors of the worst row, in units of the RMS of what is expected there.

    Rows that are expected to be 0 throughout are left out: they have no size.

    Parameters
    ----------
    actual, expected : torch.Tensor
        As in `error_size`. A row is what shares an index of the first dimension.
    """
    left, right = (unpack_float4(each.detach()) for each in (actual, expected))
    rows = right.shape[0] if right.dim() else 1
    width = right.numel() // rows if rows else 0
    if not width:
        return 0.0
    left, right = left.reshape(rows, width), right.reshape(rows, width)
    step, worst = max(1, _CHUNK // width), 0.0
    for start in range(0, rows, step):
        wanted, error = _errors(left[start : start + step], right[start : start + step], None)
        size, errors = wanted.square().sum(dim=1), error.square().sum(dim=1)
        share = (errors / size).masked_fill_(size == 0.0, 0.0)
        worst = max(worst, math.sqrt(float(share.max())))
    return worst


def _errors(
    left: torch.Tensor, right: torch.Tensor, beyond: Optional[Tolerance]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what was expected and the absolute errors, with 0 where they do not count."""
    import torch

    wanted = right.to(torch.float64)
    finite = wanted.isfinite()
    wanted = wanted.masked_fill(~finite, 0.0)
    error = (left.to(torch.float64) - wanted).abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
    error.masked_fill_(~finite, 0.0)
    if beyond is not None:
        size = wanted.abs().clamp_(min=RELATIVE_FLOOR)
        matches = (error <= (beyond.atol or 0.0)) | (error <= size * (beyond.rtol or 0.0))
        error.masked_fill_(matches, 0.0)
    return wanted, error

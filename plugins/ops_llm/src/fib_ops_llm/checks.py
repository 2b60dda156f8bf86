"""Helper functions of the evaluators: settings, error sizes and `Check` objects."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.correctness import (
    RELATIVE_FLOOR,
    Comparison,
    compare,
    unpack_float4,
)
from flashinfer_bench.bench.evaluators.base import Check
from flashinfer_bench.bench.evaluators.default import plain_number
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.data.tolerance import Tolerance


def count_of(config: ResolvedEvalConfig, key: str, default: int) -> int:
    """Return a setting that is a count.

    Parameters
    ----------
    config : ResolvedEvalConfig
        Its ``extra`` may contain the setting.
    key : str
        Name of the setting.
    default : int
        Value if it is not set.

    Raises
    ------
    ConfigError
        If it is not an integer of at least 1.
    """
    value = config.extra.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refused(key, value, "an integer of at least 1", default)
    return value


def number_of(
    config: ResolvedEvalConfig, key: str, default: float, *, most: float = math.inf
) -> float:
    """Return a setting that is a number above 0 and at most `most`.

    Raises
    ------
    ConfigError
        If it is not such a number.
    """
    value = config.extra.get(key, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and 0.0 < value <= most):
        allowed = "a number above 0" + (f", at most {most:g}" if most < math.inf else "")
        raise _refused(key, value, allowed, default)
    return float(value)


def _refused(key: str, value: object, allowed: str, default: float) -> ConfigError:
    return ConfigError(
        f"extra.{key}: must be {allowed} (got {value!r})",
        hint=f"leave it out for the default, {default:g}",
    )


# Size of the errors of an output, relative to the size of the expected values.
#
# An element-wise tolerance does not limit elements that need not match, and hardly limits outputs
# that are small compared with ``atol``. The root mean square (RMS) of the errors divided by that of
# the reference has no such gap: zeros give 1, an independent result of the same size gives √2.


_CHUNK = 1 << 21  # elements processed at once: bounds the memory of float64 copies


@dataclass(frozen=True)
class ErrorSize:
    """Errors of one output relative to the RMS of the reference.

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
    """Return the size of the errors of `actual`.

    Elements whose reference is NaN or ±inf are skipped: they must be identical, which `compare`
    checks. If everything else is expected to be 0, errors are 0 or inf.

    Parameters
    ----------
    actual, expected : torch.Tensor
        Floating-point tensors of the same shape, on the CPU.
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
    """Return the RMS of the errors of the worst row, relative to the RMS of its expected values.

    Rows that are expected to be all 0 are skipped, because they have no scale.

    Parameters
    ----------
    actual, expected : torch.Tensor
        As in `error_size`. A row is a slice along the first dimension.
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
    """Return the expected values and the absolute errors, with 0 where errors do not count."""
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


def compare_output(
    name: str, actual: torch.Tensor, expected: torch.Tensor, config: ResolvedEvalConfig
) -> tuple[Comparison, bool]:
    """Compare one output within its tolerance; also return whether it passes."""
    tolerance = config.tolerance_of(name)
    found = compare(actual, expected, atol=tolerance.atol or 0.0, rtol=tolerance.rtol or 0.0)
    return found, found.passes(tolerance.required_matched_ratio or 1.0)


def with_size(found: Check, name: str, size: float, problems: Sequence[str]) -> Check:
    """Add the error size to the check of outputs that passed, and any further problems."""
    assert found.correctness is not None
    extra = {**(found.correctness.extra or {}), name: plain_number(size)}
    correctness = found.correctness.model_copy(update={"extra": extra})
    return Check.of(correctness, problems) if problems else replace(found, correctness=correctness)

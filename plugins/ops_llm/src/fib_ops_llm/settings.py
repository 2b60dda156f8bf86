"""Reading the settings that only one evaluator knows, from ``ResolvedEvalConfig.extra``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from flashinfer_bench.bench.config import ResolvedEvalConfig


def count_of(config: ResolvedEvalConfig, key: str, default: int) -> int:
    """Return a setting that counts something.

    Parameters
    ----------
    config : ResolvedEvalConfig
        Whose ``extra`` may hold it.
    key : str
        Name of the setting.
    default : int
        What holds if it is not set.

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
        If it is something else.
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

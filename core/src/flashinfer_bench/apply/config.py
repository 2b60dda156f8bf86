"""Settings of apply, global and by definition.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Optional, get_args

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.config_registry import ConfigRegistry

MissPolicy = Literal["fallback_only", "use_def_best", "nearest"]
"""What to do with a call of a size that has not been recorded."""

MISS_POLICIES: tuple[str, ...] = get_args(MissPolicy)


@dataclass(frozen=True)
class ApplyConfig:
    """Which solutions may be substituted, and with which safeguards.

    Parameters
    ----------
    max_atol, max_rtol : float, optional
        Maximum recorded absolute and relative error of a solution; each bound that is given must
        hold. If both are None (the default), the bounds follow from the definition's dtypes and
        tolerance, and a solution needs to satisfy only one of them; see
        `flashinfer_bench.apply.table`.
    aot_ratio : float
        Share of solutions, in [0, 1], that are built when apply is enabled, starting with those
        that win most keys. The rest is built on first use.
    on_miss_policy : str
        For a size that was never recorded: ``"fallback_only"`` calls the original,
        ``"use_def_best"`` the best solution over all recorded sizes, ``"nearest"`` the winner of
        the nearest recorded size within `nearest_ratio`.
    shadow_calls : int
        Number of initial calls of an entry that also run the original and are compared.
    shadow_share : float
        Share of later calls that are also compared, in [0, 1].
    max_failures : int
        Number of failures, at least 1, after which an entry is no longer used.
    strict : bool
        Whether to raise if a solution cannot be built or run, instead of falling back.
    nearest_ratio : float
        Maximum factor by which each axis may differ under ``"nearest"``; at least 1.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """

    max_atol: Optional[float] = None
    max_rtol: Optional[float] = None
    aot_ratio: float = 1.0
    on_miss_policy: MissPolicy = "fallback_only"
    shadow_calls: int = 0
    shadow_share: float = 0.0
    max_failures: int = 3
    strict: bool = False
    nearest_ratio: float = 2.0

    def __post_init__(self) -> None:
        for name in ("max_atol", "max_rtol"):
            if getattr(self, name) is not None:
                self._number(name, least=0.0, most=math.inf, wanted="a number, 0 or more, or None")
        for name in ("aot_ratio", "shadow_share"):
            self._number(name, least=0.0, most=1.0, wanted="a number from 0 to 1")
        self._number("nearest_ratio", least=1.0, most=math.inf, wanted="a number, 1 or more")
        self._count("shadow_calls", least=0)
        self._count("max_failures", least=1)
        if type(self.strict) is not bool:
            raise _refusal("strict", self.strict, "True or False")
        if self.on_miss_policy not in MISS_POLICIES:
            raise _refusal("on_miss_policy", self.on_miss_policy, ", ".join(MISS_POLICIES))

    def _number(self, name: str, *, least: float, most: float, wanted: str) -> None:
        value = getattr(self, name)
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not least <= value <= most:  # rejects NaN, too
            raise _refusal(name, value, wanted)

    def _count(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            raise _refusal(name, value, f"a whole number, {least} or more")


def _refusal(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{name}={value!r} is not allowed in an ApplyConfig; give {wanted}")


class ApplyConfigRegistry(ConfigRegistry[ApplyConfig]):
    """Settings by definition, with a default.

    Parameters
    ----------
    default : ApplyConfig, optional
        For definitions without their own settings; by default apply is off for them.
    per_definition : mapping of str to ApplyConfig, optional
        By definition name.

    Raises
    ------
    ConfigError
        If a value has the wrong type.
    """

    kind = ApplyConfig
    default: Optional[ApplyConfig]

    @old_parameters
    def get(self, name: str) -> Optional[ApplyConfig]:
        """Return the settings of the definition `name`; None if apply is off for it."""
        return self._own.get(name, self.default)


def as_registry(config: ApplyConfig | ApplyConfigRegistry | None) -> ApplyConfigRegistry:
    """Convert settings in any accepted form to a registry.

    Parameters
    ----------
    config : ApplyConfig, ApplyConfigRegistry or None
        None selects `get_default_registry`; a single config applies to all definitions.

    Raises
    ------
    ConfigError
        If it has any other type.
    """
    given = get_default_registry() if config is None else config
    return ApplyConfigRegistry.of("apply_config", given)


_default = ApplyConfigRegistry(ApplyConfig())


def get_default_registry() -> ApplyConfigRegistry:
    """Return the default settings; registering settings there changes them."""
    return _default

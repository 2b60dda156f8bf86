"""Settings of apply, for all definitions and for single ones.

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
"""What to do with a call of a size that nobody has recorded."""

MISS_POLICIES: tuple[str, ...] = get_args(MissPolicy)


@dataclass(frozen=True)
class ApplyConfig:
    """What may be substituted for a call, and how carefully.

    Parameters
    ----------
    max_atol, max_rtol : float, optional
        Largest recorded absolute and relative error of a solution; what is given must be kept. If
        both are None, the default, it depends on the definition's dtypes and tolerance, and it is
        enough to keep to one of the two; see `flashinfer_bench.apply.table`.
    aot_ratio : float
        Share of the solutions that win most keys which is built when apply is enabled, in [0, 1].
        The rest is built when first needed.
    on_miss_policy : str
        For a size that was never recorded: ``"fallback_only"`` calls the original,
        ``"use_def_best"`` the solution that is best over all recorded sizes, ``"nearest"`` the
        winner of the nearest recorded size within `nearest_ratio`.
    shadow_calls : int
        This many first calls of an entry also run the original, and are compared.
    shadow_share : float
        Share of later calls that are compared as well, in [0, 1].
    max_failures : int
        An entry is no longer used after this many failures; at least 1.
    strict : bool
        Whether a solution that cannot be built or run raises, instead of falling back.
    nearest_ratio : float
        By which factor each axis may differ under ``"nearest"``; at least 1.

    Raises
    ------
    ConfigError
        If a value is not allowed.
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
        if not real or not least <= value <= most:  # NaN is within no bounds
            raise _refusal(name, value, wanted)

    def _count(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            raise _refusal(name, value, f"a whole number, {least} or more")


def _refusal(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{name}={value!r} is not allowed in an ApplyConfig; give {wanted}")


class ApplyConfigRegistry(ConfigRegistry[ApplyConfig]):
    """The settings of each definition: its own, or the default.

    Parameters
    ----------
    default : ApplyConfig, optional
        For definitions without their own settings; by default nothing is applied to those.
    per_definition : mapping of str to ApplyConfig, optional
        By name of the definition.

    Raises
    ------
    ConfigError
        If something else is given.
    """

    kind = ApplyConfig
    wanted = "an ApplyConfig"
    purpose = "apply"
    default: Optional[ApplyConfig]

    @old_parameters
    def get(self, name: str) -> Optional[ApplyConfig]:
        """Return the settings of the definition `name`; None if nothing is applied to it."""
        return self._own.get(name, self.default)


def as_registry(config: ApplyConfig | ApplyConfigRegistry | None) -> ApplyConfigRegistry:
    """Return settings in any of their forms as a registry.

    Parameters
    ----------
    config : ApplyConfig, ApplyConfigRegistry or None
        None for `get_default_registry`; a config holds for all definitions.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if config is None:
        return get_default_registry()
    if isinstance(config, ApplyConfigRegistry):
        return config
    return ApplyConfigRegistry(ApplyConfigRegistry.checked("apply_config", config))


_default = ApplyConfigRegistry(ApplyConfig())


def get_default_registry() -> ApplyConfigRegistry:
    """Return the settings used by default; registering there changes them."""
    return _default

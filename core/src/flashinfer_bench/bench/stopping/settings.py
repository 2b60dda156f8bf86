"""The settings of timing: fields that all classes of settings share, and how layers merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

from pydantic import Field, ValidationInfo, field_validator

from flashinfer_bench.bench._settings import SettingsModel
from flashinfer_bench.bench.stopping.registry import RULES, require_parameters, require_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Count = Annotated[int, Field(ge=1, strict=True)]
Warmups = Annotated[int, Field(ge=0, strict=True)]
Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Cache = Literal["cold", "warm"]
Watch = Literal["auto", "off"]

#: The settings of timing, but for ``stop_params``, which are merged key by key.
TIMING_FIELDS = (
    "warmup_runs",
    "iterations",
    "num_trials",
    "stop_rule",
    "min_samples",
    "max_samples",
    "max_seconds",
    "cache",
    "watch",
    "interleave_reference",
)


class _Checked(SettingsModel):
    """What holds for these fields wherever they are set."""

    @field_validator("stop_rule", check_fields=False)
    @classmethod
    def _known_rule(cls, value: Optional[str]) -> Optional[str]:
        if value is not None:
            require_rule(value)
        return value

    @field_validator("stop_params", check_fields=False)
    @classmethod
    def _parameters_of_the_rule(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "stop_rule" in info.data:  # else it is wrong itself
            require_parameters(info.data["stop_rule"], value)
        return value

    @field_validator("max_samples", check_fields=False)
    @classmethod
    def _not_below_the_least(cls, value: Optional[int], info: ValidationInfo) -> Optional[int]:
        least = info.data.get("min_samples")
        if value is not None and least is not None and value < least:
            raise ValueError(f"must be at least min_samples, which is {least}")
        return value


class TimingOverrides(_Checked):
    """Settings of timing of which any may be missing.

    Attributes
    ----------
    warmup_runs : int, optional
        Untimed calls before the first timed one; with the rule ``fixed``, before each round.
    iterations : int, optional
        Timed calls of each round; only the rule ``fixed`` has rounds.
    num_trials : int, optional
        Sets of random inputs on which the outputs are checked; with the rule ``fixed`` also the
        rounds of timing.
    stop_rule : str, optional
        What decides when there are enough samples: ``fixed``, ``rse`` or ``entropy``.
    stop_params : dict
        Parameters of that rule. They are merged key by key over the layers; a layer that names
        another rule drops those of weaker layers.
    min_samples, max_samples : int, optional
        Limits over the rule.
    max_seconds : float, optional
        Seconds by the wall clock that the timed calls of a solution on a workload may take.
    cache : str, optional
        ``cold``: caches of the device are emptied before each timed call; ``warm``: they are not.
    watch : str, optional
        ``auto`` looks at clocks, temperature and load while timing; ``off`` does not.
    interleave_reference : bool, optional
        Whether the reference is timed in turn with the solution that it is compared with.
    """

    warmup_runs: Optional[Warmups] = None
    iterations: Optional[Count] = None
    num_trials: Optional[Count] = None
    stop_rule: Optional[str] = None
    stop_params: dict[str, Any] = Field(default_factory=dict)
    min_samples: Optional[Count] = None
    max_samples: Optional[Count] = None
    max_seconds: Optional[Seconds] = None
    cache: Optional[Cache] = None
    watch: Optional[Watch] = None
    interleave_reference: Optional[bool] = None


class TimingSettings(_Checked):
    """Settings of timing as they hold if nobody sets them.

    Attributes
    ----------
    warmup_runs, iterations, num_trials, stop_rule, stop_params, cache, watch, interleave_reference
        As in `TimingOverrides`.
    min_samples, max_samples : int, optional
        None: what suits the rule (see `TimingPlan`).
    max_seconds : float, optional
        None: 15, but no limit for the rule ``fixed``.
    """

    warmup_runs: Warmups = 10
    iterations: Count = 50
    num_trials: Count = 3
    stop_rule: str = "fixed"
    stop_params: dict[str, Any] = Field(default_factory=dict)
    min_samples: Optional[Count] = None
    max_samples: Optional[Count] = None
    max_seconds: Optional[Seconds] = None
    cache: Cache = "cold"
    watch: Watch = "auto"
    interleave_reference: bool = True


def merged_params(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of the rule that the strongest layer names.

    Parameters
    ----------
    layers : iterable of mapping
        From weak to strong; ``stop_rule`` and ``stop_params`` may be missing in any.
    """
    rule: Optional[str] = None
    params: dict[str, Any] = {}
    for layer in layers:
        named = layer.get("stop_rule")
        if named is not None and named != rule:
            params = _fitting(named, params) if rule is None else {}
            rule = named
        params.update(layer.get("stop_params", {}))
    return params


def _fitting(rule: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the rule has: they were set for no rule in particular."""
    own = {one.name for one in RULES[rule].parameters()}
    return {key: value for key, value in params.items() if key in own}


def over_file(
    from_file: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Put values over those of a file.

    Parameters
    ----------
    from_file, given : mapping
        Values by field.

    Returns
    -------
    values : dict
        All together; parameters of a rule that `given` replaces are left out.
    weak : frozenset of str
        What comes from the file: names of fields, and ``stop_params.KEY`` for each of those.
    """
    params = merged_params([{"stop_rule": "fixed"}, from_file, given])
    own = given.get("stop_params", {})
    values = {**from_file, **given}
    if "stop_params" in values:
        values["stop_params"] = params
    weak = set(from_file) - set(given)
    return values, frozenset(weak | {f"stop_params.{key}" for key in params if key not in own})

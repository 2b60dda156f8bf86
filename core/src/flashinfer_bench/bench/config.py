"""Settings of a benchmark run, and the layers in which they are resolved."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pydantic
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from flashinfer_bench._lazy import old_call
from flashinfer_bench.bench import stopping
from flashinfer_bench.bench.digests import fresh_seed
from flashinfer_bench.data.tolerance import Tolerance, require_known_outputs
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.plugins import Catalog, default_catalog
from flashinfer_bench.tensors import dtypes

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from typing_extensions import Self

    from flashinfer_bench.data import Definition, Workload

LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")

_Count = Annotated[int, Field(ge=1, strict=True)]
_Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
_Tolerance = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Ratio = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]

FIXED_TOLERANCE = 1e-2
"""Absolute and relative, where nobody sets anything."""

_DEVICE = re.compile(r"[a-z]+(:\d+)?", re.ASCII)


class TimingSettings(BaseModel):
    """Settings that can differ between definitions, with their defaults.

    It knows no other keys than its fields, and raises `ConfigError`.

    Attributes
    ----------
    warmup_runs, iterations, num_trials, stop_rule, stop_params, cache, watch, interleave_reference
    tolerance, rtol, atol, required_matched_ratio
        As in `EvalConfig`.
    min_samples, max_samples : int, optional
        None: what suits the rule (see `TimingPlan`).
    max_seconds : float, optional
        None: 15; for the rule ``fixed`` no limit (see `TimingPlan.shortened`).
    processes : int, optional
        None: as many as rounds on the CPU, one on other devices.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    warmup_runs: Annotated[int, Field(ge=0, strict=True)] = 10
    iterations: _Count = 50
    num_trials: _Count = 3
    stop_rule: str = "fixed"
    stop_params: dict[str, Any] = Field(default_factory=dict)
    min_samples: Optional[_Count] = None
    max_samples: Optional[_Count] = None
    max_seconds: Optional[_Seconds] = None
    processes: Optional[_Count] = None
    cache: Literal["cold", "warm"] = "cold"
    watch: Literal["auto", "off"] = "auto"
    interleave_reference: bool = True
    tolerance: Literal["fixed", "dtype"] = "fixed"
    rtol: _Tolerance = FIXED_TOLERANCE
    atol: _Tolerance = FIXED_TOLERANCE
    required_matched_ratio: Optional[_Ratio] = None

    if not TYPE_CHECKING:  # type checkers see the typed signature that pydantic derives

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _config_error(type(self), error) from error

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError as error:
                raise _config_error(type(self), error) from error

    @classmethod
    def checked(cls, values: dict[str, Any], source: str) -> Self:
        """Build from a mapping; an error also names `source`, where the values come from."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error

    @pydantic.field_validator("stop_rule")
    @classmethod
    def _known_rule(cls, value: Optional[str]) -> Optional[str]:
        if value is not None:
            stopping.rule_of(value, {})
        return value

    @pydantic.field_validator("stop_params")
    @classmethod
    def _parameters_of_the_rule(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        rule = info.data.get("stop_rule")
        if rule is not None:
            stopping.rule_of(rule, value)
        elif "stop_rule" in info.data:  # else it is wrong itself
            stopping.require_parameters(value)
        return value

    @pydantic.field_validator("max_samples")
    @classmethod
    def _not_below_the_least(cls, value: Optional[int], info: ValidationInfo) -> Optional[int]:
        least = info.data.get("min_samples")
        if value is not None and least is not None and value < least:
            raise ValueError(f"must be at least min_samples, which is {least}")
        return value


def _config_error(cls: type[BaseModel], error: ValidationError) -> ConfigError:
    told = [_told(cls, item) for item in error.errors(include_url=False)]
    hints = [hint for _, hint in told if hint]
    return ConfigError("; ".join(text for text, _ in told), hint=hints[0] if hints else None)


def _told(cls: type[BaseModel], item: ErrorDetails) -> tuple[str, Optional[str]]:
    """Return what is wrong with a value, and a hint."""
    path = ".".join(str(part) for part in item["loc"])
    inner = item.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):  # of a model inside the model, which says it best
        return f"{path}: {inner.message}", inner.hint
    if item["type"] != "extra_forbidden":
        reason = item["msg"].removeprefix("Value error, ")
        return f"{path}: {reason} (got {item['input']!r})", None
    name = str(item["loc"][-1])
    return f"{path}: no such setting", stopping.nearest(name, cls.model_fields)


#: The settings that can differ between definitions, but for dictionaries.
EVAL_FIELDS = tuple(name for name in TimingSettings.model_fields if name != "stop_params")


class EvalConfig(TimingSettings):
    """Settings for one operation type or one definition; what is None is left to the layer below.

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
        What decides when there are enough samples: ``fixed``, ``rse``, or a plugin's.
    stop_params : dict
        Parameters of that rule. They are merged key by key over the layers; a layer that names
        another rule drops those of weaker layers.
    min_samples, max_samples : int, optional
        Limits over the rule.
    max_seconds : float, optional
        Seconds by the wall clock that the timed calls of a solution on a workload may take.
    processes : int, optional
        Fresh processes over which the timed calls are spread, so that the interval covers what
        differs between processes; by default twice `num_trials` on the CPU, and elsewhere one, or
        `num_trials` if calls wait for the device. Not with other rules than ``fixed``.
    cache : str, optional
        ``cold``: caches of the device are emptied before each timed call; ``warm``: they are not.
    watch : str, optional
        ``auto`` looks at clocks, temperature and load while timing; ``off`` does not.
    interleave_reference : bool, optional
        Whether the reference is timed in turn with the solution that it is compared with.
    tolerance : str, optional
        The `rtol` and `atol` of outputs for which none is set: ``fixed``, 0.01 for all outputs, or
        ``dtype``, what suits the dtypes of the definition (see `default_tolerance`).
    rtol, atol : float, optional
        An element passes if its relative error is at most `rtol` **or** its absolute error at most
        `atol`.
    required_matched_ratio : float, optional
        Share of the elements of each output that must pass, in (0, 1].
    extra : dict
        Settings that only some evaluators know; merged key by key over the layers.
    """

    extra: dict[str, Any] = Field(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _unset_unless_given(cls, values: Any) -> Any:
        return {**dict.fromkeys(EVAL_FIELDS), **values} if isinstance(values, dict) else values

    @pydantic.field_validator(*EVAL_FIELDS, mode="wrap")
    @classmethod
    def _none_is_unset(cls, value: Any, check: pydantic.ValidatorFunctionWrapHandler) -> Any:
        return None if value is None else check(value)

    def given(self) -> dict[str, Any]:
        """Return what is set here, by field."""
        return self.model_dump(exclude_none=True)


class ResolvedEvalConfig(TimingSettings):
    """The settings that hold for one definition, all layers merged.

    The settings of timing are those of `TimingSettings`; `TimingPlan.of` makes a plan of them.

    Attributes
    ----------
    rtol, atol : float
        What holds for an output that is not in `tolerances`.
    required_matched_ratio : float, optional
        None leaves it to the evaluator; the default evaluator then asks for every element.
    tolerances : dict of str to Tolerance
        By output, over the three above. Evaluators ask `tolerance_of`.
    atol_by_dtype, rtol_by_dtype : frozenset of str
        Outputs whose `atol`, or `rtol`, is not set. If `tolerance` is ``dtype``, it suits their
        dtype, but not yet their scale.
    scaled_atol : dict of str to float
        By output, the absolute tolerance that suits its scale, where ``dtype`` would be held to
        that; known once the reference has run.
    tightened : dict of str to str
        By output, why its tolerance is smaller than what was asked for (see `tightened` in
        the verified measurement).
    extra : dict
        Settings that only some evaluators know.
    """

    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    atol_by_dtype: frozenset[str] = frozenset()
    rtol_by_dtype: frozenset[str] = frozenset()
    scaled_atol: dict[str, float] = Field(default_factory=dict)
    tightened: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)

    @pydantic.field_serializer("atol_by_dtype", "rtol_by_dtype")
    def _in_order(self, names: frozenset[str]) -> list[str]:
        return sorted(names)

    def tolerance_of(self, output: str) -> Tolerance:
        """Return what holds for one output; `atol` and `rtol` are never None in it."""
        own = self.tolerances.get(output) or Tolerance()
        return Tolerance(
            atol=self.atol if own.atol is None else own.atol,
            rtol=self.rtol if own.rtol is None else own.rtol,
            required_matched_ratio=own.required_matched_ratio or self.required_matched_ratio,
            max_error_cap=own.max_error_cap,
        )

    def by_dtype(self, definition: Definition, output: str) -> Optional[Tolerance]:
        """Return what ``dtype`` would hold an output to; None if ``fixed`` lets no more pass."""
        own = self.tolerance_of(output)
        if self.tolerance == "dtype":
            return None
        suits = dtypes.default_tolerances(definition)[output]
        values = {}
        if output in self.atol_by_dtype:
            values["atol"] = min(own.atol or 0.0, self.scaled_atol.get(output, suits))
        if output in self.rtol_by_dtype:
            values["rtol"] = min(own.rtol or 0.0, suits)
        strict = own.model_copy(update=values)
        return None if strict == own else strict

    def held_to_dtypes(self, definition: Definition) -> Optional[ResolvedEvalConfig]:
        """Return these settings with the tolerances of `by_dtype`; None if they have them."""
        strict = {name: self.by_dtype(definition, name) for name in definition.outputs}
        stricter = {name: one for name, one in strict.items() if one is not None}
        if not stricter:
            return None
        return self.model_copy(update={"tolerances": {**self.tolerances, **stricter}})


class BenchmarkConfig(TimingSettings):
    """Settings of a run.

    Values given to the constructor, or to `from_yaml` and `default` as keywords, are *explicit*
    and stand over everything in a file; see `resolve_eval_config`. The settings of timing are those
    of `TimingSettings`.

    Attributes
    ----------
    tolerance, rtol, atol, required_matched_ratio
        As in `EvalConfig`.
    log_level : str
        Least severe level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL.
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``, or several with commas between; None takes every CUDA
        device, or the CPU if there is none.
    definitions, solutions : list of str, optional
        Names to restrict the run to; None means all.
    timeout_seconds : float
        Wall time that one evaluation may take, building included; waiting for the device is free.
    profile_baseline : bool
        Whether the reference is timed. If not, ``reference_latency_ms`` and ``speedup_factor`` of
        the traces are 0, which stands for "not measured".
    use_isolated_runner : bool
        Start a fresh process for every evaluation, instead of one for each solution.
    build_jobs : int, optional
        How many solutions are compiled at the same time; None takes one less than there are cores,
        or fewer where memory is short.
    op_type_config : dict of str to EvalConfig
        Settings by operation type.
    definition_config : dict of str to EvalConfig
        Settings by definition name.
    seed : int, optional
        Seed of all random inputs; None draws a fresh one for each run. Every trace records it.
    lock_clocks_mhz : int, optional
        Hold the SM clock of GPUs there during the run, in MHz, and let go of it afterwards; what a
        killed run has left, the next one lets go of. That takes the rights of an administrator,
        and is not for machines that others use. None leaves clocks as they are.
    executor, timer, evaluator : str, optional
        Name of the plugin record to use; None takes the best that is available.
    measurement : str, optional
        Name of the way in which solutions are measured: ``basic``, ``verified``, or a plugin's;
        None takes the best that is installed.
    trust : str
        ``full``: every timed call has its own values and addresses, some are checked, and the
        judge's own clock and what the device can do are held against each latency. ``off``: none of
        that, for solutions that are known not to cheat.
    sandbox : str
        ``auto`` confines candidates as far as this system allows, and reports once what it does not
        offer; ``strict`` refuses to run then; ``off`` does not confine them.

    Raises
    ------
    ConfigError
        If a value is not allowed or a name is not known.
    """

    log_level: str = "INFO"
    device: Optional[str] = None
    definitions: Optional[list[str]] = None
    solutions: Optional[list[str]] = None
    timeout_seconds: _Seconds = 300
    profile_baseline: bool = True
    use_isolated_runner: bool = False
    build_jobs: Optional[_Count] = None
    op_type_config: dict[str, EvalConfig] = Field(default_factory=dict)
    definition_config: dict[str, EvalConfig] = Field(default_factory=dict)
    seed: Optional[Annotated[int, Field(ge=0, lt=2**63, strict=True)]] = None
    executor: Optional[_Name] = None
    timer: Optional[_Name] = None
    evaluator: Optional[_Name] = None
    lock_clocks_mhz: Optional[_Count] = None
    measurement: Optional[str] = None
    trust: Literal["full", "off"] = "full"
    sandbox: Literal["off", "auto", "strict"] = "auto"

    # What came from a file, and ``stop_params.KEY`` for each such parameter of a rule: defaults,
    # which more specific layers override.
    _from_file: frozenset[str] = pydantic.PrivateAttr(default=frozenset())

    @pydantic.model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        known = not isinstance(values, dict) or values.keys() <= cls.model_fields.keys()
        return values if known else old_call("renamed_settings", values)

    @pydantic.field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.upper() not in LOG_LEVELS:
            raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
        return value.upper()

    @pydantic.field_validator("device")
    @classmethod
    def _device_name(cls, value: Optional[str]) -> Optional[str]:
        names = value.split(",") if value is not None else []
        if not all(map(_DEVICE.fullmatch, names)):
            raise ValueError("a device is cpu, cuda or cuda:N; separate several with commas")
        if any(name.startswith("cpu:") for name in names):
            raise ValueError("the CPU has no device number: write cpu")
        return value

    @classmethod
    def from_yaml(cls, path: Union[str, Path], **overrides: Any) -> BenchmarkConfig:
        """Read settings from a YAML file whose keys are the fields of this class.

        Parameters
        ----------
        path : str or Path
            The file.
        **overrides
            Fields that stand over the file; None means "not given".

        Raises
        ------
        ConfigError
            If the file cannot be read or a value is not allowed.
        """
        return cls._layered(read_settings(Path(path)), overrides, str(path))

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        """Return the settings of op families with `overrides`, explicit ones (None: not given)."""
        families = {"op_type_config": _family_settings(default_catalog())}
        return cls._layered(families, overrides, "op families")

    @classmethod
    def _layered(
        cls, weak: dict[str, Any], overrides: dict[str, Any], source: str
    ) -> BenchmarkConfig:
        given = {name: value for name, value in overrides.items() if value is not None}
        cls.checked(weak, source)  # so that the file is blamed for its own mistakes only
        values = {**weak, **given}
        params = stopping.merged_params([{"stop_rule": "fixed"}, weak, given])
        if "stop_params" in values:
            values["stop_params"] = params
        config = cls(**values)
        of_rule = {
            f"stop_params.{key}" for key in params if key not in given.get("stop_params", {})
        }
        config._from_file = frozenset(weak.keys() - given.keys() | of_rule)
        return config

    @property
    def explicit_fields(self) -> frozenset[str]:
        """Names of the fields that were set by code or on the command line."""
        return frozenset(self.model_fields_set) - self._from_file

    def seeded(self) -> BenchmarkConfig:
        """Return these settings with a seed, a fresh one if there is none."""
        return self if self.seed is not None else self.model_copy(update={"seed": fresh_seed()})

    def resolve_eval_config(
        self, definition: Definition, workload: Optional[Workload] = None
    ) -> ResolvedEvalConfig:
        """Merge the layers that hold for `definition`.

        From weak to strong: the defaults (of this class, or from the top level of a file), the
        settings of its op family, `op_type_config`, the definition's own tolerance,
        `definition_config`, the workload's own tolerance, and the explicit values. ``extra`` is
        merged key by key, as are the ``stop_params`` of one rule; everything else is replaced.
        Where `atol` or `rtol` is not set, `tolerance` decides it.

        Parameters
        ----------
        definition : Definition
            What is computed.
        workload : Workload, optional
            On what.

        Raises
        ------
        DataError
            If the workload has a tolerance for an output that the definition does not have.
        """
        if not hasattr(definition, "outputs"):
            definition = old_call("bare_definition", definition)
        own = workload.tolerance if workload is not None else None
        require_known_outputs(own, definition.outputs, field="workload.tolerance")
        weak, strong = self._own_values()
        op_type = definition.op_type
        nothing = EvalConfig()
        by_type = self.op_type_config.get(op_type, nothing).given()
        by_name = self.definition_config.get(definition.name, nothing).given()
        family = _family_settings(default_catalog()).get(op_type, {})
        settings: list[dict[str, Any]] = [weak, family, by_type, by_name, strong]
        layers = [*settings[:3], definition.tolerance, by_name, own, strong]
        merged = {name: value for layer in settings for name, value in layer.items()}
        defaults = dtypes.default_tolerances(definition)
        if merged["tolerance"] == "fixed":
            defaults = {name: FIXED_TOLERANCE if value else 0.0 for name, value in defaults.items()}
        shared = max((value for value in defaults.values() if value), default=self.atol)
        merged.update(dtypes.tolerance_values(layers, shared))
        merged.pop("max_error_cap", None)
        merged["extra"] = {k: v for layer in settings for k, v in layer.get("extra", {}).items()}
        merged["stop_params"] = stopping.merged_params(settings)
        return ResolvedEvalConfig(
            **merged,
            tolerances={
                name: Tolerance(**dtypes.tolerance_values(layers, default, name))
                for name, default in defaults.items()
            },
            atol_by_dtype=dtypes.outputs_without("atol", layers, defaults),
            rtol_by_dtype=dtypes.outputs_without("rtol", layers, defaults),
        )

    def _own_values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is set here: by default or in a file, and explicitly."""
        weak: dict[str, Any] = {}
        strong: dict[str, Any] = {}
        explicit = self.explicit_fields
        for name in EVAL_FIELDS:
            # Where nobody sets these two, `tolerance` says what they are.
            if name not in ("atol", "rtol") or name in self.model_fields_set:
                (strong if name in explicit else weak)[name] = getattr(self, name)
        for key, value in self.stop_params.items():
            layer = weak if f"stop_params.{key}" in self._from_file else strong
            layer.setdefault("stop_params", {})[key] = value
        return weak, strong


@lru_cache(maxsize=1)  # asked for each definition and workload
def _family_settings(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return what the op families of a catalog set, by op type."""
    by_type: dict[str, dict[str, Any]] = {}
    for entry in reversed(catalog.op_families):
        if entry.spec.settings is not None and entry.availability():
            told = {"op_type_config": dict(entry.load(entry.spec.settings))}
            source = f"op family {entry.name!r} of {entry.origin}"
            for op_type, config in BenchmarkConfig.checked(told, source).op_type_config.items():
                by_type[op_type] = config.given()
    return by_type


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict
        What it holds; empty for an empty file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or holds something else.
    """
    import yaml  # ~15 ms that only a run pays

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the settings file {path}: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"{path} must hold a mapping of settings, not {type(content).__name__}",
            hint="write one 'name: value' per line, for example 'iterations: 20'",
        )
    return content

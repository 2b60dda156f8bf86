"""Settings of a benchmark run, and the layers in which they are resolved."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

from pydantic import Field, PrivateAttr, field_validator

from flashinfer_bench.bench._settings import read_settings
from flashinfer_bench.bench.dtype_tolerances import (
    Layer,
    default_tolerances,
    outputs_without,
    tolerance_values,
)
from flashinfer_bench.bench.stopping.settings import (
    TIMING_FIELDS,
    Count,
    Seconds,
    TimingOverrides,
    TimingSettings,
    merged_params,
    over_file,
)
from flashinfer_bench.data.tolerance import Tolerance, require_known_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.data import Definition, Workload

_Tolerance = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Ratio = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]

#: The settings that can differ between definitions, but for dictionaries.
EVAL_FIELDS = (*TIMING_FIELDS, "rtol", "atol", "required_matched_ratio")
_TOLERANCES = ("atol", "rtol", "required_matched_ratio")
_BY_DTYPE = ("atol", "rtol")  # where nobody sets them, the definition's dtypes do
_DEVICE = re.compile(r"[a-z]+(:\d+)?", re.ASCII)
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")


class EvalConfig(TimingOverrides):
    """Settings for one operation type or one definition; what is None is left to the layer below.

    The settings of timing (``warmup_runs``, ``stop_rule``, …) are those of `TimingOverrides`.

    Attributes
    ----------
    rtol, atol : float, optional
        An element passes if its relative error is at most `rtol` **or** its absolute error at most
        `atol`.
    required_matched_ratio : float, optional
        Share of the elements of each output that must pass, in (0, 1].
    extra : dict
        Settings that only some evaluators know; merged key by key over the layers.
    """

    rtol: Optional[_Tolerance] = None
    atol: Optional[_Tolerance] = None
    required_matched_ratio: Optional[_Ratio] = None
    extra: dict[str, Any] = Field(default_factory=dict)


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
    atol_by_dtype : frozenset of str
        Outputs whose `atol` nobody has set: it suits their dtype, but not yet their scale.
    tightened : dict of str to str
        By output, why its tolerance is smaller than what was asked for (see `tightened` in
        `flashinfer_bench.bench.judge.decidability`).
    extra : dict
        Settings that only some evaluators know.
    """

    rtol: _Tolerance
    atol: _Tolerance
    required_matched_ratio: Optional[_Ratio] = None
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    atol_by_dtype: frozenset[str] = frozenset()
    tightened: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, Any] = Field(default_factory=dict)

    def tolerance_of(self, output: str) -> Tolerance:
        """Return what holds for one output; `atol` and `rtol` are never None in it."""
        own = self.tolerances.get(output) or Tolerance()
        return Tolerance(
            atol=self.atol if own.atol is None else own.atol,
            rtol=self.rtol if own.rtol is None else own.rtol,
            required_matched_ratio=own.required_matched_ratio or self.required_matched_ratio,
            max_error_cap=own.max_error_cap,
        )


class BenchmarkConfig(TimingSettings):
    """Settings of a run.

    Values given to the constructor, or to `from_yaml` and `default` as keywords, are *explicit*
    and stand over everything in a file; see `resolve_eval_config`. The settings of timing are those
    of `TimingSettings`.

    Attributes
    ----------
    required_matched_ratio
        As in `EvalConfig`.
    rtol, atol : float
        As in `EvalConfig`. The value shown is that of 16-bit outputs: where it is not set, each
        definition gets what suits its dtypes (see `default_tolerance`).
    log_level : str
        Least severe level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL.
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``; None takes every CUDA device, or the CPU if there is none.
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
        Hold the SM clock of GPUs there during the run, in MHz, and let go of it afterwards, also
        after a crash. That takes the rights of an administrator, and is not for machines that
        others use. None leaves clocks as they are.
    executor, timer, evaluator : str, optional
        Name of the plugin record to use; None takes the best that is available.
    trust : str
        ``full``: every timed call has values and addresses of its own, some are checked, and the
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

    rtol: _Tolerance = 1e-2
    atol: _Tolerance = 1e-2
    required_matched_ratio: Optional[_Ratio] = None
    log_level: str = "INFO"
    device: Optional[str] = None
    definitions: Optional[list[str]] = None
    solutions: Optional[list[str]] = None
    timeout_seconds: Seconds = 300
    profile_baseline: bool = True
    use_isolated_runner: bool = False
    build_jobs: Optional[Count] = None
    op_type_config: dict[str, EvalConfig] = Field(default_factory=dict)
    definition_config: dict[str, EvalConfig] = Field(default_factory=dict)
    seed: Optional[Annotated[int, Field(ge=0, lt=2**63, strict=True)]] = None
    executor: Optional[_Name] = None
    timer: Optional[_Name] = None
    evaluator: Optional[_Name] = None
    lock_clocks_mhz: Optional[Count] = None
    trust: Literal["full", "off"] = "full"
    sandbox: Literal["off", "auto", "strict"] = "auto"

    # What came from a file (see `over_file`): defaults, which more specific layers override.
    _from_file: frozenset[str] = PrivateAttr(default=frozenset())

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.upper() not in LOG_LEVELS:
            raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
        return value.upper()

    @field_validator("device")
    @classmethod
    def _device_name(cls, value: Optional[str]) -> Optional[str]:
        if value is not None and not _DEVICE.fullmatch(value):
            raise ValueError("a device is written cpu, cuda or cuda:N")
        if value is not None and value.startswith("cpu:"):
            raise ValueError("the CPU is one device, without a number: write cpu")
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
        """Return the packaged settings, with `overrides` as explicit values (None: not given)."""
        return cls._layered(_packaged_settings(), overrides, "eval_config.yaml")

    @classmethod
    def _layered(
        cls, from_file: dict[str, Any], overrides: dict[str, Any], source: str
    ) -> BenchmarkConfig:
        given = {name: value for name, value in overrides.items() if value is not None}
        cls.checked(from_file, source)  # so that the file is blamed for its own mistakes only
        values, weak = over_file(from_file, given)
        config = cls(**values)
        config._from_file = weak
        return config

    @property
    def explicit_fields(self) -> frozenset[str]:
        """Names of the fields that were set by code or on the command line."""
        return frozenset(self.model_fields_set) - self._from_file

    def resolve_eval_config(
        self, definition: Definition, workload: Optional[Workload] = None
    ) -> ResolvedEvalConfig:
        """Merge the layers that hold for `definition`.

        From weak to strong: the defaults (of this class, or from the top level of a file), the
        packaged settings of the operation type, `op_type_config`, the definition's own tolerance,
        `definition_config`, the workload's own tolerance, and the explicit values. ``extra`` is
        merged key by key, as are the ``stop_params`` of one rule; everything else is replaced.
        Where nobody has set `atol` or `rtol`, the dtypes of the definition say what it is (see
        `default_tolerance`).

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
        own = workload.tolerance if workload is not None else None
        require_known_outputs(own, definition.outputs, field="workload.tolerance")
        weak, strong = self._own_values()
        layers: list[Layer] = [
            weak,
            _set_values(_packaged().get(definition.op_type)),
            _set_values(self.op_type_config.get(definition.op_type)),
            definition.tolerance,
            _set_values(self.definition_config.get(definition.name)),
            own,
            strong,
        ]
        by_dtype = default_tolerances(definition)
        shared = max((value for value in by_dtype.values() if value), default=self.atol)
        common = tolerance_values(layers, shared)
        settings = _merged([layer for layer in layers if isinstance(layer, dict)])
        return ResolvedEvalConfig(
            **{**settings, **{name: common.get(name) for name in _TOLERANCES}},
            tolerances={
                name: Tolerance(**tolerance_values(layers, default, name))
                for name, default in by_dtype.items()
            },
            atol_by_dtype=outputs_without("atol", layers, by_dtype),
        )

    def _own_values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is set here: by default or in a file, and explicitly."""
        explicit = self.explicit_fields
        by_dtype = set(_BY_DTYPE) - self.model_fields_set
        own = {name: getattr(self, name) for name in EVAL_FIELDS if name not in by_dtype}
        weak = {name: value for name, value in own.items() if name not in explicit}
        strong = {name: value for name, value in own.items() if name in explicit}
        for key, value in self.stop_params.items():
            layer = weak if f"stop_params.{key}" in self._from_file else strong
            layer.setdefault("stop_params", {})[key] = value
        return weak, strong


def _set_values(config: Optional[EvalConfig]) -> dict[str, Any]:
    return {} if config is None else config.model_dump(exclude_none=True)


def _merged(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for layer in layers:
        extra.update(layer.get("extra", {}))
        merged.update(layer)
    return {**merged, "extra": extra, "stop_params": merged_params(layers)}


def _packaged_settings() -> dict[str, Any]:
    return read_settings(Path(__file__).with_name("eval_config.yaml"))


@cache
def _packaged() -> dict[str, EvalConfig]:
    return BenchmarkConfig(**_packaged_settings()).op_type_config

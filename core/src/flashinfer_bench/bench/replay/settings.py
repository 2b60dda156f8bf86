"""The settings of an evaluation: what of them is recorded, and how they come back from that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Optional

from pydantic import PrivateAttr

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.stopping.settings import TIMING_FIELDS
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data import Definition, Workload

#: Settings of a run that can decide a verdict or a latency; number of calls, seed, timer and trust
#: have places of their own in a trace.
_OF_RUNS = (
    "timeout_seconds",
    "profile_baseline",
    "use_isolated_runner",
    "executor",
    "evaluator",
    "sandbox",
)
_COUNTS = ("warmup_runs", "iterations", "num_trials")
_OF_DEFINITIONS = (
    *("atol", "rtol", "required_matched_ratio", "atol_by_dtype"),
    *(name for name in TIMING_FIELDS if name not in _COUNTS),
    "stop_params",
)
_BY_KEY = ("tolerances", "extra")  # only the keys that differ are recorded


def recorded_settings(
    config: BenchmarkConfig, definition: Definition, workload: Workload
) -> dict[str, Any]:
    """Return the settings that differ from what this release takes if nobody sets anything.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings of the run.
    definition, workload
        What is evaluated.

    Returns
    -------
    dict
        Plain data; empty if all is as by default.
    """
    defaults = _defaults()
    changed = {
        name: getattr(config, name)
        for name in _OF_RUNS
        if getattr(config, name) != getattr(defaults, name)
    }
    before = _plain(defaults.resolve_eval_config(definition, workload))
    after = _plain(config.resolve_eval_config(definition, workload))
    changed.update((name, after[name]) for name in _OF_DEFINITIONS if after[name] != before[name])
    for name in _BY_KEY:
        own = {key: value for key, value in after[name].items() if value != before[name].get(key)}
        if own:
            changed[name] = own
    return changed


@cache
def _defaults() -> BenchmarkConfig:
    return BenchmarkConfig.default()


def _plain(settings: ResolvedEvalConfig) -> dict[str, Any]:
    dumped = settings.model_dump(mode="json")
    dumped["atol_by_dtype"] = sorted(dumped["atol_by_dtype"])
    return dumped


class RecordedConfig(BenchmarkConfig):
    """Settings under which each definition has those that a trace recorded."""

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def restored(cls, changed: Mapping[str, Any], **fields: Any) -> RecordedConfig:
        """Return the settings of a trace.

        Parameters
        ----------
        changed : mapping
            As of `recorded_settings`.
        **fields
            Further fields of `BenchmarkConfig`; None leaves one at its default.

        Raises
        ------
        ConfigError
            If a value is not allowed.
        """
        for name in _BY_KEY:
            if not isinstance(changed.get(name, {}), dict):
                raise ConfigError(f"the recorded setting {name!r} is no mapping: {changed[name]!r}")
        config = cls.default(**{name: changed.get(name) for name in _OF_RUNS}, **fields)
        assert isinstance(config, RecordedConfig)
        config._changed = dict(changed)
        return config

    def resolve_eval_config(
        self, definition: Definition, workload: Optional[Workload] = None
    ) -> ResolvedEvalConfig:
        """Return the defaults for a definition with what was recorded put over them.

        Raises
        ------
        ConfigError
            If what was recorded is not allowed.
        """
        settings = super().resolve_eval_config(definition, workload).model_dump()
        changed = self._changed
        settings.update((name, changed[name]) for name in _OF_DEFINITIONS if name in changed)
        for name in _BY_KEY:
            settings[name].update(changed.get(name, {}))
        return ResolvedEvalConfig(**settings)

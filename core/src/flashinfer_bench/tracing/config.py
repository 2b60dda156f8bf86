"""Settings of tracing: which inputs a workload keeps, and which calls become workloads.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, Optional, Union, get_args

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.config_registry import ConfigRegistry

InputDumpPolicyName = Literal["dump_none", "dump_all", "dump_int32", "dump_integers"]
"""Which inputs are written as they were: none, all, those of int32, or of int64 too."""

FilterPolicyName = Literal[
    "keep_all",
    "keep_first",
    "keep_first_k",
    "keep_none",
    "keep_first_by_axes",
    "keep_first_k_by_axes",
    "keep_first_by_avg_seq_len",
    "keep_random_k",
]
"""Which calls become workloads; see `flashinfer_bench.tracing.policies`."""

DumpFunction = Callable[[Mapping[str, Any]], Union[list[str], Mapping[str, Any]]]
"""Picks inputs of a call: inputs by name in, names (or a mapping of them) out."""

_WILD = frozenset("*?[")

DUMP_POLICIES: tuple[str, ...] = get_args(InputDumpPolicyName)
FILTER_POLICIES: tuple[str, ...] = get_args(FilterPolicyName)


@dataclass(frozen=True)
class TracingConfig:
    """What is recorded of the calls of a definition.

    Parameters
    ----------
    input_dump_policy : str, list of str or callable
        Which inputs are written as they were; the others become random. ``"dump_none"``,
        ``"dump_all"``, ``"dump_int32"``, ``"dump_integers"`` (int32 and int64), a name registered
        with `PolicyRegistry`, names of inputs, or a function of the inputs by name that returns
        names. Scalars are always written.
    input_dump_policy_kwargs : mapping
        Keyword arguments of a registered policy or a function.
    filter_policy : str or callable
        Which calls become workloads: one of `FILTER_POLICIES`, a name registered with
        `PolicyRegistry`, or what makes a policy object (`FilterPolicy`).
    filter_policy_kwargs : mapping
        Keyword arguments of the policy.

    Raises
    ------
    ConfigError
        If a value is not allowed. Names are looked up when tracing starts: they may be registered
        until then.
    """

    input_dump_policy: Union[InputDumpPolicyName, str, list[str], DumpFunction] = "dump_none"
    input_dump_policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    filter_policy: Union[FilterPolicyName, str, Callable[..., Any]] = "keep_all"
    filter_policy_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dump, keep = self.input_dump_policy, self.filter_policy
        if isinstance(dump, (list, tuple)):
            _require(all(_is_name(each) for each in dump), "input_dump_policy", dump, _NAMES)
            object.__setattr__(self, "input_dump_policy", list(dump))
        else:
            _require(_is_name(dump) or callable(dump), "input_dump_policy", dump, _NAMES)
        _require(
            _is_name(keep) or callable(keep),
            "filter_policy",
            keep,
            "the name of a policy, or what makes one",
        )
        for name in ("input_dump_policy_kwargs", "filter_policy_kwargs"):
            given = getattr(self, name)
            given = {} if given is None else given
            named = isinstance(given, Mapping) and all(isinstance(each, str) for each in given)
            _require(named, name, given, "a mapping of parameter names")
            object.__setattr__(self, name, dict(given))

    __hash__ = None  # type: ignore[assignment]  # the arguments of policies may be anything

    def to_record(self) -> dict[str, Any]:
        """Return the settings as plain data, in the order of the fields."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


_NAMES = "the name of a policy, a list of names of inputs, or a function"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _require(allowed: bool, name: str, value: object, wanted: str) -> None:
    if not allowed:
        raise ConfigError(f"{name}={value!r} is not allowed in a TracingConfig; give {wanted}")


class TracingConfigRegistry(ConfigRegistry[TracingConfig]):
    """The settings of each definition: its own, or the default.

    Parameters
    ----------
    default : TracingConfig, optional
        For definitions without settings of their own. None: their calls are not recorded.
    per_definition : mapping of str to TracingConfig, optional
        By name of the definition, or by a pattern of names: ``"gemm_*"``. A name goes before
        patterns, and of those the one that was given first.

    Raises
    ------
    ConfigError
        If something else is given.
    """

    kind = TracingConfig
    wanted = "a TracingConfig"
    purpose = "tracing"
    default: Optional[TracingConfig]

    def __init__(
        self,
        default: Optional[TracingConfig] = None,
        per_definition: Optional[Mapping[str, TracingConfig]] = None,
    ) -> None:
        self.default = None if default is None else self.checked("default", default)
        super().__init__(per_definition)

    def get(self, name: str) -> Optional[TracingConfig]:
        """Return the settings of the definition `name`; None if its calls are not recorded."""
        if name in self._own:
            return self._own[name]
        patterns = (each for each in self._own if _WILD.intersection(each))
        found = next((each for each in patterns if fnmatchcase(name, each)), None)
        return self.default if found is None else self._own[found]

    def configs(self) -> list[TracingConfig]:
        """Return all settings that there are."""
        return [*([] if self.default is None else [self.default]), *self._own.values()]


def as_registry(config: Any) -> TracingConfigRegistry:
    """Return settings in any of their forms as a registry.

    Parameters
    ----------
    config : TracingConfig, TracingConfigRegistry, mapping of str to TracingConfig, or None
        None for `flashinfer_bench.tracing.presets.get_default_configs`; a config holds for all
        definitions; of a mapping, only the definitions in it are recorded.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if config is None:
        from flashinfer_bench.tracing.presets import get_default_configs

        return get_default_configs()
    if isinstance(config, TracingConfigRegistry):
        return config
    if isinstance(config, Mapping):
        return TracingConfigRegistry(None, config)
    return TracingConfigRegistry(TracingConfigRegistry.checked("tracing_config", config))


@dataclass(frozen=True)
class TracingLimits:
    """How much memory tracing may take.

    Parameters
    ----------
    max_keys : int
        Distinct keys that are remembered of each definition. Of more, the older half is forgotten:
        a call that was recorded long ago may be recorded again.
    max_entries : int
        Entries of all definitions that wait to be written; more are handed to the dataset early.
    max_bytes : int
        Bytes of their tensors; as `max_entries`. An entry that is larger alone is not recorded.

    Raises
    ------
    ConfigError
        If a value is not a positive whole number.
    """

    max_keys: int = 65536
    max_entries: int = 1024
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"{each.name}={value!r} is not allowed in TracingLimits; "
                    "give a whole number from 1 on"
                )

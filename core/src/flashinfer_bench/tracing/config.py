"""Settings of tracing: which inputs a workload keeps, and which calls become workloads.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Optional, Union

from flashinfer_bench._lazy import OldAttributes, old_parameters, old_value
from flashinfer_bench.errors import CapabilityError, ConfigError, UnknownNameError
from flashinfer_bench.routing.config_registry import ConfigRegistry

DumpFunction = Callable[[Mapping[str, Any]], Union[list[str], Mapping[str, Any]]]
"""Selects inputs of a call: takes the inputs by name, returns names (or a mapping of them)."""

_WILD = frozenset("*?[")

_LENGTHS = "keep_first_by_avg_seq_len"

# Built-in names: the presets of this module need no plugin look-up.
_KNOWN = ("dump_none", "dump_int32", "dump_integers", "keep_all", "keep_first_by_axes", _LENGTHS)


@dataclass(frozen=True)
class TracingConfig(OldAttributes):
    """Settings for recording the calls of a definition.

    Parameters
    ----------
    input_dump_policy : str, list of str or callable
        Which inputs are stored with their values; the others become random. ``"dump_none"``,
        ``"dump_all"``, ``"dump_int32"``, ``"dump_integers"`` (int32 and int64), a name registered
        with `PolicyRegistry`, a list of input names, or a function that takes the inputs by name
        and returns names. Scalars are always stored.
    input_dump_policy_kwargs : mapping
        Keyword arguments for a registered policy or a function.
    filter_policy : str or callable
        Which calls become workloads: ``"keep_all"``, ``"keep_none"``, ``"keep_first"``,
        ``"keep_first_k"``, ``"keep_first_by_axes"``, ``"keep_first_k_by_axes"``; from fib-ops-llm
        ``"keep_first_by_avg_seq_len"`` and ``"keep_random_k"``; a name registered with
        `PolicyRegistry`; or a factory of policy objects (`FilterPolicy`).
    filter_policy_kwargs : mapping
        Keyword arguments for the policy.

    Raises
    ------
    ConfigError
        If a value is invalid or the policy does not exist. The name of a policy whose plugin is not
        installed is accepted here, and becomes an error when tracing starts.
    """

    input_dump_policy: Union[str, list[str], DumpFunction] = "dump_none"
    input_dump_policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    filter_policy: Union[str, Callable[..., Any]] = "keep_all"
    filter_policy_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dump, keep = self.input_dump_policy, self.filter_policy
        allowed = _names(dump)
        if isinstance(dump, (list, tuple)):
            object.__setattr__(self, "input_dump_policy", list(dump))
            allowed = all(map(_is_name, dump))
        wanted = "a policy name, a list of input names, or a function"
        _require(allowed, "input_dump_policy", dump, wanted)
        _require(_names(keep), "filter_policy", keep, "a policy name, or a factory of one")
        for name in ("input_dump_policy_kwargs", "filter_policy_kwargs"):
            given = {} if getattr(self, name) is None else getattr(self, name)
            named = isinstance(given, Mapping) and all(isinstance(each, str) for each in given)
            _require(named, name, given, "a mapping of parameter names")
            object.__setattr__(self, name, dict(given))
        for name in ("input_dump_policy", "filter_policy"):
            named = getattr(self, name)
            if isinstance(named, str) and named not in _KNOWN:
                object.__setattr__(self, name, _known_policy(name, named))

    __hash__ = None  # type: ignore[assignment]  # policy arguments may be unhashable


def _known_policy(decides: str, name: str) -> str:
    """Return the current name of a policy.

    Raises
    ------
    ConfigError
        If the policy does not exist.
    """
    from flashinfer_bench.tracing.policies import DUMPS, PolicyRegistry

    try:
        if decides == "filter_policy":
            PolicyRegistry.get_filter_policy(name)
        elif name not in DUMPS:
            PolicyRegistry.get_input_dump_policy(name)
    except CapabilityError:  # the plugin that provides it is not installed
        return name
    except UnknownNameError as error:
        if new := old_value(decides, name):
            return new
        raise ConfigError(f"{decides}: {error.message}", hint=error.hint) from error
    return name


def positive(name: str, value: Any) -> int:
    """Return a setting that is a number of calls or bytes.

    Raises
    ------
    ConfigError
        If it is not a positive whole number.
    """
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}={value!r} is not allowed; give a whole number, 1 or more")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _names(policy: object) -> bool:
    return _is_name(policy) or callable(policy)


def _require(allowed: bool, name: str, value: object, wanted: str) -> None:
    if not allowed:
        raise ConfigError(f"{name}={value!r} is not allowed in a TracingConfig; give {wanted}")


class TracingConfigRegistry(ConfigRegistry[TracingConfig]):
    """Settings by definition, with a default.

    Parameters
    ----------
    default : TracingConfig, optional
        For definitions without their own settings. None: their calls are not recorded.
    per_definition : mapping of str to TracingConfig, optional
        By definition name or name pattern, such as ``"gemm_*"``. An exact name takes precedence
        over patterns; among patterns, the first match wins.

    Raises
    ------
    ConfigError
        If a value has the wrong type.
    """

    kind = TracingConfig
    default: Optional[TracingConfig]

    @old_parameters
    def get(self, name: str) -> Optional[TracingConfig]:
        """Return the settings of the definition `name`; None if its calls are not recorded."""
        if name in self._own:
            return self._own[name]
        patterns = (each for each in self._own if _WILD.intersection(each))
        found = next((each for each in patterns if fnmatchcase(name, each)), None)
        return self.default if found is None else self._own[found]


def as_registry(config: Any) -> TracingConfigRegistry:
    """Convert settings in any accepted form to a registry.

    Parameters
    ----------
    config : TracingConfig, TracingConfigRegistry, mapping of str to TracingConfig, or None
        None selects `get_default_configs`; a single config applies to all definitions; with a
        mapping, only its definitions are recorded.

    Raises
    ------
    ConfigError
        If it has any other type.
    """
    if config is None:
        return get_default_configs()
    if isinstance(config, Mapping):
        return TracingConfigRegistry(None, config)
    return TracingConfigRegistry.of("tracing_config", config)


@dataclass(frozen=True)
class TracingLimits:
    """Memory limits of tracing.

    Parameters
    ----------
    max_keys : int
        Number of distinct keys remembered per definition. Beyond it the older half is forgotten, so
        that a call recorded long ago may be recorded again.
    max_entries : int
        Number of entries, of all definitions, waiting to be written; beyond it they are written
        early.
    max_bytes : int
        Total bytes of their tensors, likewise. A single entry that is larger is not recorded.

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
            positive(each.name, getattr(self, each.name))


# ------------------------------------------------------------------------------------- presets
#
# Presets for the computations that engines consist of, recognised by the names that the dataset
# format uses. Weights and activations become random inputs: they are large, and their values do not
# affect speed. Sequence boundaries and page indices are stored with their values, because they
# determine the amount of work. Calls of matrix products and norms are distinguished by their sizes;
# calls of attention by the number of sequences and their average length: two consecutive decode
# steps differ in every length, but are the same work.

AXES_ONLY = TracingConfig("dump_none", filter_policy="keep_first_by_axes")
"""One workload per combination of sizes, with random inputs."""

INTEGERS_BY_AXES = TracingConfig("dump_integers", filter_policy="keep_first_by_axes")
"""One workload per combination of sizes, with the recorded indices."""

DECODE = TracingConfig(
    "dump_int32",
    filter_policy=_LENGTHS,
    filter_policy_kwargs={"k": 1, "by_batch": True, "indptr": "kv_indptr"},
)
"""One workload per number of sequences and average length, with the recorded index pointers."""

PREFILL = TracingConfig(
    "dump_int32",
    filter_policy=_LENGTHS,
    filter_policy_kwargs={"k": 1, "by_batch": True, "indptr": ["qo_indptr", "kv_indptr"]},
)
"""Like `DECODE`, with the average number of queries per sequence added."""

_ATTENTION = {
    "gqa_paged_decode*": DECODE,
    "gqa_paged_prefill*": PREFILL,
    "gqa_ragged_prefill*": PREFILL,
    "mla_paged_decode*": DECODE,
    "mla_paged_prefill*": PREFILL,
    "mla_ragged_prefill*": PREFILL,
}
_OTHERS = {
    "gemm_*": AXES_ONLY,
    "rmsnorm_*": AXES_ONLY,
    "fused_add_rmsnorm_*": AXES_ONLY,
    "*moe_*": INTEGERS_BY_AXES,
}


def get_attention_only_configs() -> TracingConfigRegistry:
    """Return settings for attention only; a new registry, which may be changed."""
    return TracingConfigRegistry(None, _ATTENTION)


def get_full_configs() -> TracingConfigRegistry:
    """Return settings for all definitions; a new registry, which may be changed.

    Definitions without a preset are distinguished by sizes, and their integer inputs are stored.
    """
    return TracingConfigRegistry(INTEGERS_BY_AXES, {**_ATTENTION, **_OTHERS})


get_default_configs = get_full_configs
"""The settings used if none are given."""

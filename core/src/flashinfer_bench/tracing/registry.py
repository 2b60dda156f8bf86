"""Policies by name: those that are built in, and those that users register."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import ConfigError, DuplicateNameError, UnknownNameError
from flashinfer_bench.tracing.policies import (
    FilterPolicy,
    KeepAll,
    KeepFirstByAvgSeqLen,
    KeepFirstK,
    KeepFirstKByAxes,
    KeepNone,
    KeepRandomK,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.tracing.config import TracingConfig
    from flashinfer_bench.tracing.layout import Layout

    FilterFactory = Callable[..., FilterPolicy]
    Picker = Callable[[Mapping[str, Any]], "tuple[str, ...]"]
    """Returns the names of the inputs to dump, given all inputs by name."""


def _keep_first() -> FilterPolicy:
    return KeepFirstK(1)


def _keep_first_by_axes() -> FilterPolicy:
    return KeepFirstKByAxes(1)


_FILTERS: dict[str, FilterFactory] = {
    "keep_all": KeepAll,
    "keep_none": KeepNone,
    "keep_first": _keep_first,
    "keep_first_k": KeepFirstK,
    "keep_first_by_axes": _keep_first_by_axes,
    "keep_first_k_by_axes": KeepFirstKByAxes,
    "keep_first_by_avg_seq_len": KeepFirstByAvgSeqLen,
    "keep_random_k": KeepRandomK,
}


def _dump_none(layout: Layout) -> tuple[str, ...]:
    return ()


def _dump_all(layout: Layout) -> tuple[str, ...]:
    return layout.tensors()


def _dump_int32(layout: Layout) -> tuple[str, ...]:
    import torch

    return layout.tensors((torch.int32,))


def _dump_integers(layout: Layout) -> tuple[str, ...]:
    import torch

    return layout.tensors((torch.int32, torch.int64))


_DUMPS: dict[str, Callable[[Layout], tuple[str, ...]]] = {
    "dump_none": _dump_none,
    "dump_all": _dump_all,
    "dump_int32": _dump_int32,
    "dump_integers": _dump_integers,
}


class PolicyRegistry:
    """Finds policies by the names that a `TracingConfig` gives.

    Names hold for the runtimes that start afterwards.
    """

    _default: Optional[PolicyRegistry] = None

    def __init__(self) -> None:
        self._filters: dict[str, FilterFactory] = dict(_FILTERS)
        self._dumps: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    @classmethod
    def get_instance(cls) -> PolicyRegistry:
        """Return the registry that runtimes look into."""
        if cls._default is None:
            cls._default = PolicyRegistry()
        return cls._default

    @property
    def filter_policies(self) -> list[str]:
        """Names of filter policies."""
        return sorted(self._filters)

    @property
    def dump_policies(self) -> list[str]:
        """Names of dump policies."""
        return sorted({*_DUMPS, *self._dumps})

    def register_filter_policy(
        self, name: str, factory: FilterFactory, override: bool = False
    ) -> None:
        """Add a filter policy.

        Parameters
        ----------
        name : str
            For `TracingConfig.filter_policy`.
        factory : callable
            Makes a policy, one for each definition: a class of `FilterPolicy`, say. Gets
            ``filter_policy_kwargs``.
        override : bool
            Whether a policy of that name may be replaced; one that is built in never is.

        Raises
        ------
        ConfigError
            If the name is none, or the factory cannot be called.
        DuplicateNameError
            If there is a policy of that name.
        """
        with self._lock:
            _check("filter policy", name, factory)
            _require_new(name, name in self._filters, name in _FILTERS, override)
            self._filters[name] = factory

    def register_input_dump_policy(
        self, name: str, function: Callable[..., Any], override: bool = False
    ) -> None:
        """Add a dump policy.

        Parameters
        ----------
        name : str
            For `TracingConfig.input_dump_policy`.
        function : callable
            Gets the inputs of a call by name, and ``input_dump_policy_kwargs``; returns the names
            of those to write.
        override : bool
            As of `register_filter_policy`.

        Raises
        ------
        ConfigError, DuplicateNameError
            As of `register_filter_policy`.
        """
        with self._lock:
            _check("dump policy", name, function)
            known = name in self._dumps or name in _DUMPS
            _require_new(name, known, name in _DUMPS, override)
            self._dumps[name] = function

    def make_filter_policy(self, config: TracingConfig) -> FilterPolicy:
        """Return a new policy object for one definition.

        Raises
        ------
        UnknownNameError
            If there is no policy of that name.
        ConfigError
            If its parameters are not allowed, or it lacks a method.
        """
        named = config.filter_policy
        if isinstance(named, str):
            if named not in self._filters:
                raise _unknown("filter policy", named, self.filter_policies)
            factory: Any = self._filters[named]
        else:
            factory = named
        try:
            policy = factory(**config.filter_policy_kwargs)
        except TypeError as error:
            raise ConfigError(f"filter_policy={named!r} cannot be made: {error}") from error
        lacking = [each for each in ("submit", "drain", "reset") if not _has(policy, each)]
        if lacking:
            raise ConfigError(
                f"filter_policy={named!r} makes a {type(policy).__name__}, which lacks "
                f"{', '.join(lacking)}",
                hint="subclass flashinfer_bench.tracing.FilterPolicy",
            )
        made: FilterPolicy = policy
        return made

    def require_dump_policy(self, name: str) -> None:
        """Check that there is a dump policy of a name.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        if name not in _DUMPS and name not in self._dumps:
            raise _unknown("dump policy", name, self.dump_policies)

    def make_picker(self, config: TracingConfig, layout: Layout) -> Picker:
        """Return what picks the inputs to dump of a call of one definition.

        Raises
        ------
        UnknownNameError
            If there is no policy of that name.
        """
        wanted = config.input_dump_policy
        if isinstance(wanted, str):
            if wanted in _DUMPS:
                return _always(_DUMPS[wanted](layout))
            self.require_dump_policy(wanted)
            return _asking(self._dumps[wanted], config.input_dump_policy_kwargs, layout)
        if isinstance(wanted, list):
            return _always(tuple(name for name in layout.tensors() if name in wanted))
        return _asking(wanted, config.input_dump_policy_kwargs, layout)


def _always(names: tuple[str, ...]) -> Picker:
    return lambda inputs: names


def _asking(function: Callable[..., Any], kwargs: Mapping[str, Any], layout: Layout) -> Picker:
    tensors = layout.tensors()

    def pick(inputs: Mapping[str, Any]) -> tuple[str, ...]:
        picked = set(function(dict(inputs), **kwargs) or ())
        return tuple(name for name in tensors if name in picked)

    return pick


def _has(policy: object, method: str) -> bool:
    return callable(getattr(policy, method, None))


def _check(what: str, name: object, function: object) -> None:
    if not (isinstance(name, str) and name):
        raise ConfigError(f"{name!r} is no name of a {what}")
    if not callable(function):
        raise ConfigError(f"{what} '{name}': {type(function).__name__} cannot be called")


def _require_new(name: str, known: bool, built_in: bool, override: bool) -> None:
    if built_in:
        raise DuplicateNameError(f"policy '{name}' is built in", hint="choose another name")
    if known and not override:
        raise DuplicateNameError(
            f"there is a policy '{name}' already", hint="pass override=True to replace it"
        )


def _unknown(what: str, name: str, known: list[str]) -> UnknownNameError:
    return UnknownNameError(
        f"there is no {what} '{name}'; there are {', '.join(known)}",
        hint="register your own with PolicyRegistry.get_instance()",
    )
